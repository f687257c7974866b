"""``docs/reference/settings.md``: every key of ``conf/ackstream.toml`` with its default and its comment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parents[2] / "conf" / "ackstream.toml"
_HEAD = """# Settings

Every key with its default in brackets (none: empty), made by `python -m tests.reference` of
`conf/ackstream.toml`. Where the file is found: [operations](../operate/operations.md#settings).

- Environment variables override the file: `ca` of `[kafka.security.tls]` is `ACKSTREAM_KAFKA_SECURITY_TLS_CA`. Lists
  and tables are JSON: `ACKSTREAM_QUEUES='[{"name": "orders", "topics": ["orders/*"]}]'`.
- A duration has a unit: `250ms`, `10s`, `5m`, `1h`, `7d`; or ISO 8601: `PT10S`.
- A secret is a text, `{file = "/run/secrets/kafka"}`, or `{environment = "NAME"}`.
- In names `*` is any run of characters.
- A section in double brackets may be repeated. None is set; examples and defaults are shown.
"""
_EMPTY = '""', "[]", "{}"
_SECTION = re.compile(r"(?:# )?(?P<name>\[+[a-z_.]+]+)(?: +# (?P<comment>.*))?$")
_KEY = re.compile(r"(?:# )?(?P<key>[a-z_]+) = (?P<value>.*?)(?: +# (?P<comment>.*))?$")
_MORE = re.compile(r" {9,}# (?P<comment>.*)$|# {9,}# (?P<more>.*)$")


@dataclass
class Entry:
    """A part or a key, with its comment."""

    name: str
    value: str = ""
    comment: list[str] = field(default_factory=list)
    keys: list[Entry] = field(default_factory=list)


def parts() -> list[Entry]:
    """Return the parts of the file in their order, each with its keys."""
    found: list[Entry] = []
    last = Entry("")
    for line in FILE.read_text("utf-8").splitlines():
        if match := _SECTION.match(line):
            last = Entry(match["name"])
            found.append(last)
        elif found and (match := _KEY.match(line)):
            last = Entry(match["key"], match["value"])
            found[-1].keys.append(last)
        elif not found or not (match := _MORE.match(line)):
            continue
        last.comment += [text for name, text in match.groupdict().items() if text and name in ("comment", "more")]
    return found


def page() -> str:
    """Return the page."""
    return "".join([_HEAD, *map(_part, parts())])


def _part(part: Entry) -> str:
    lines = [f"\n## {part.name}\n"]
    about = _sentence(part.comment)
    lines += [f"{about[0].upper()}{about[1:]}.\n"] if about else []
    lines += map(_line, part.keys)
    return "\n".join(lines) + "\n"


def _line(key: Entry) -> str:
    about = f": {_sentence(key.comment)}" if key.comment else ""
    default = "" if key.value in _EMPTY else f" (`{key.value}`)"
    return f"- `{key.name}`{default}{about}"


def _sentence(comment: list[str]) -> str:
    text = re.sub(r"\bdocs/([a-z-]+/([a-z-]+)\.md)", r"[\2](../\1)", " ".join(comment))
    # a star is any run of characters, not emphasis
    text = re.sub(r"(?<![`\w])(\[\[[a-z.]+]])", r"`\1`", text)
    return re.sub(r"(?<=[ (])\*(?= )", "`*`", text).replace("sasl.*", "`sasl.*`")
