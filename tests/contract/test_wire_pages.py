"""The pages for other languages name what exists: topics, types of records, headers, programs, versions."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree as ET

import pytest

from ackstream.protocol.dispositions import DUPLICATE, SESSION_OVER
from ackstream.protocol.ditto.labels import BUILT_IN
from ackstream.protocol.ledger import reply_id
from ackstream.protocol.record_headers import APPLICATION
from tests.contract.asyncapi import FORMATS, HEADERS, TYPES
from tests.contract.checking import Contract

ROOT = Path(__file__).parent.parent.parent
WIRE = "\n".join((ROOT / f"docs/reference/{page}.md").read_text("utf-8") for page in ("wire", "wire-messages"))
LANGUAGES = (ROOT / "docs/guides/other-languages.md").read_text("utf-8")
CLIENTS = ROOT / "docs" / "clients"
PROGRAMS = sorted(path for path in CLIENTS.iterdir() if path.suffix in {".java", ".py"})
SCHEMAS = Contract().document["components"]["schemas"]
TAGS = {tag for schema in SCHEMAS.values() for tag in schema.get("properties", {}).get("type", {}).get("enum", ())}
MEMBERS = {name for schema in SCHEMAS.values() for name in schema.get("properties", {})}
VALUES = set(re.findall(r'"((?:[a-z]+[_-]?)+)"', str(SCHEMAS | HEADERS).replace("'", '"')))
OF_OTHERS = {
    *("isolation.level=read_committed", "acks=all", "partitioner=murmur2_random", "in", "headers.correlation-id"),
    *("message.timestamp.type=LogAppendTime", "continue", "true", "false", "TOPIC-PARTITION-OFFSET"),
    *(
        "log.retention.hours",
        "retention.ms",
        "find",
        "Blake2bDigest(128)",
        "org.bouncycastle:bcprov-jdk18on",
        "/errors",
    ),
    *("ce_", "application/json", "+json", "text/", "content-transfer-encoding"),
}
CODES = re.findall(r'(?m)^code = "(.*)"', (ROOT / "ackstream" / "protocol" / "errors.toml").read_text("utf-8"))


def test_the_wire_page_names_what_exists() -> None:
    known = {*FORMATS, *BUILT_IN, *TAGS, *MEMBERS, *HEADERS, *VALUES, *OF_OTHERS, *CODES, APPLICATION}
    known |= {one.name for about in FORMATS.values() for one in about.formats}
    known |= {text for about in FORMATS.values() for one in about.formats for text in one.fixed.values()}
    named = set(re.findall(r"`([^`\n]+)`", WIRE))
    named -= {"c-1", reply_id("c-1", "signals", 3, 1042), reply_id("c-60", "orders", 2, 3)}
    own = {name for name in named if not re.match(r"ackstream |correlate\.|kafka\.|unknown/|\d|[a-z-]+: ", name)}
    assert own - known == {DUPLICATE, SESSION_OVER}
    for pair in named - own:
        header, _, text = pair.partition(": ")
        assert not text or header in {*HEADERS, *MEMBERS}, pair


def test_the_id_of_a_reply_is_made_as_the_wire_page_says() -> None:
    (said,) = re.findall(r"\(`c-1`, `signals`, 3 and 1042 give\s+`([0-9a-f]+)`\)", WIRE)
    assert said == hashlib.blake2b(b"c-1\nsignals\n3\n1042", digest_size=16).hexdigest()
    assert said == reply_id("c-1", "signals", 3, 1042)
    printed, length, result = re.findall(r"printf '(.*)' \| b2sum -l (\d+)\n```\n\nThis prints `([0-9a-f]+)`", WIRE)[0]
    text = printed.replace("\\n", "\n").encode()
    assert result == hashlib.blake2b(text, digest_size=int(length) // 8).hexdigest()
    assert result == reply_id("c-60", "orders", 2, 3)


def test_every_type_of_record_that_consumers_and_workers_write_is_on_the_wire_page() -> None:
    written = {TYPES[one.value].__struct_config__.tag for one in FORMATS["app-acks"].formats}
    # of publishers that wait for readers, of operators, and of libraries that acknowledge without their applications
    assert {tag for tag in written if f"`{tag}`" not in WIRE} == {
        "writer_asks",
        "readers_asked",
        "protocol_ack",
        "queue_drain",
    }


def test_the_page_shows_parts_of_springs_programs_as_they_are_and_names_all_programs() -> None:
    texts = [(CLIENTS / f"Spring{name}.java").read_text("utf-8") for name in ("Requester", "Party")]
    shown = re.findall(r"(?s)```java\n(.*?)```", LANGUAGES)
    assert shown
    parts = [[indent(part, " " * width) for width in (4, 12)] for part in shown]
    assert [part for part in parts if not any(one in text for one in part for text in texts)] == []
    # the hand-over between Spark jobs is on the page of those
    programs = {program.name for program in PROGRAMS} - {"handover.py"}
    assert set(re.findall(r"clients/(\w+\.(?:java|py))", LANGUAGES)) == programs


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_uses_members_headers_and_types_that_exist(program: Path) -> None:
    text = program.read_text("utf-8")
    members = set(re.findall(r'\.(?:path|put|set|has|withArray)\("(\w+)"', text))
    # of Java's own maps of what is due
    assert members - MEMBERS - {"again"} == set()
    assert set(re.findall(r'(?:header\(\w+|\.add\(|record\([^;]*?), "([a-z-]+)"', text)) <= HEADERS.keys() | VALUES
    assert set(re.findall(r'record\("(\w+)"\)|case "(\w+)"', text)) <= {(tag, "") for tag in TAGS} | {
        ("", tag) for tag in TAGS
    }


def test_the_page_names_the_jars_that_the_tests_run_with() -> None:
    pinned = {
        f"{one.get('org')}:{one.get('name')}:{one.get('rev')}"
        for one in ET.parse(ROOT / "tests" / "harness" / "ivy.xml").iter("dependency")
    }
    named = set(re.findall(r"`([a-z.]+:[a-z-]+:[\d.]+)`", LANGUAGES))
    assert len(named) == 3
    assert named <= pinned
    pom, of = ET.parse(CLIENTS / "pom.xml"), {"": "http://maven.apache.org/POM/4.0.0"}
    parts = ("groupId", "artifactId", "version")
    resolved = {":".join(one.findtext(part, "", of) for part in parts) for one in pom.iterfind(".//dependency", of)}
    assert resolved == named
