"""The reference in docs is that of the present product, and has all of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import typer.main

from ackstream import client
from ackstream.cli.main import app
from ackstream.errors import AckstreamError
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings
from ackstream.settings.base import Part
from tests.contract.asyncapi import FORMATS, HEADERS
from tests.reference import commands, settings, tables, topics
from tests.reference.pages import DIVIDED, DOCS, PAGES

COMMANDS = dict(commands.found(app))
OPTIONS = {
    name: {option for shown, *_ in commands.parameters(callback) for option in re.findall(r"(?<!\w)-[\w-]+", shown)}
    for name, callback in COMMANDS.items()
}
EVERYWHERE = {"--help", "-h", "--version", "--settings", "--install-completion"}
TEXTS = [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"]
_CALL = re.compile(r"(?m)(?:^|`|\s)ackstream (?P<rest>(?:--settings \S+ )?[a-z](?:(?! ackstream )[^`\n#|])*)")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_that_of_the_present_product(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path](), "run `python -m tests.reference`"


@pytest.mark.parametrize("pages", DIVIDED, ids=lambda pages: next(iter(pages)))
def test_the_first_lines_of_a_page_name_its_readers_and_link_to_its_sisters(
    pages: dict[str, Callable[[], str]],
) -> None:
    for name, text in pages.items():
        first = text().split("\n\n")[1]
        assert first.startswith("This page is for ")
        assert {one for one in pages if f"]({one})" in first} == pages.keys() - {name}


@pytest.mark.parametrize(
    ("pages", "headings"),
    [
        (topics.PAGES, {"Clocks", "Leases"} | {name for name in FORMATS if not name.endswith(("clock", "lease"))}),
        (settings.PAGES, {part.name for part in settings.parts()}),
        (tables.PAGES, ALL_TABLES.keys()),
        (commands.PAGES, {f"ackstream {name}" for name in COMMANDS}),
    ],
    ids=["topics", "settings", "tables", "commands"],
)
def test_every_part_of_a_reference_is_on_one_of_its_pages(
    pages: dict[str, Callable[[], str]], headings: Collection[str]
) -> None:
    found = Counter(heading for text in pages.values() for heading in re.findall(r"(?m)^## (.*)$", text()))
    assert {heading: found[heading] for heading in headings} == dict.fromkeys(headings, 1)


def test_every_record_header_is_on_a_page() -> None:
    parts = [text().partition("## Record headers")[2] for text in topics.PAGES.values()]
    found = set(re.findall(r"(?m)^- `([^`]+)`:", "".join(parts)))
    wire = (DOCS / "reference/wire.md").read_text("utf-8")
    assert {name for name in HEADERS.keys() - found if f"`{name}`" not in wire} == set()
    # those of records of any kind
    assert HEADERS.keys() - found == {"ack-quorum", "progress", "amend", "ce_id", "ce_requestedacks", "ce_timeout"}


def _keys(part: type[Part], name: str) -> set[tuple[str, str]]:
    found = set()
    for key, field in part.model_fields.items():
        if isinstance(field.default, Part):
            found |= _keys(type(field.default), f"{name}.{key}")
        else:
            found.add((f"[{name}]", key))
    return found


def test_every_key_of_the_settings_is_on_the_page() -> None:
    parts = {name: field.default for name, field in Settings.model_fields.items()}
    expected = set().union(*(_keys(type(part), name) for name, part in parts.items() if isinstance(part, Part)))
    shown = {(part.name, key.name) for part in settings.parts() for key in part.keys}
    # of what there may be any number, the page has a part of its own, as conf/ackstream.toml has
    assert expected - shown == {("[gateway]", "issuers")} - shown
    assert {name for name, part in parts.items() if part == ()} <= {part.name.strip("[]") for part in settings.parts()}


def test_every_command_and_every_column_is_on_its_page() -> None:
    pages = "".join(text() for text in (*commands.PAGES.values(), *tables.PAGES.values()))
    known = typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
    assert {name for name in known if f"## ackstream {name}" not in pages} == set()
    for table in ALL_TABLES.values():
        part = pages.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        assert all(f"`{column}`" in part for column in table.names)


def test_every_name_that_the_sdk_exports_is_on_a_page() -> None:
    shown = re.findall(r"(?m)^::: ackstream\.client\.(\w+)$", (DOCS / "reference/api-client.md").read_text("utf-8"))
    names = {name: getattr(client, name) for name in client.__all__}
    errors = {
        name for name, one in names.items() if isinstance(one, type) and issubclass(one, (AckstreamError, DittoError))
    }
    # the errors have a page of their own; Answer and Subscription are words of the annotations
    assert sorted(shown) == sorted(names.keys() - errors - {"Answer", "Subscription"})


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_option_of_a_command_on_a_page_exists(path: Path) -> None:
    unknown = set()
    for call in _CALL.finditer(path.read_text("utf-8")):
        # what follows is the job's own, or another command
        words = re.split(r" -- | && |; ", re.sub(r"^--settings \S+ ", "", call["rest"]))[0].split()
        name = " ".join(words[:2]) if " ".join(words[:2]) in OPTIONS else words[0]
        named = {word.partition("=")[0].rstrip(".,:)") for word in words if re.match(r"--?[a-zA-Z]", word)}
        unknown |= {f"ackstream {name} {option}" for option in named - OPTIONS.get(name, named) - EVERYWHERE}
    assert not unknown
