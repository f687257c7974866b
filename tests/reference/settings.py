"""The pages ``docs/reference/settings*.md``: every key of ``conf/ackstream.toml`` with its default and its comment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

FILE = Path(__file__).parents[2] / "conf" / "ackstream.toml"
_HEAD = """# Settings

This page is for all operators. Other pages describe the settings of [jobs](settings-jobs.md),
[applications](settings-applications.md) and the [gateway](settings-gateway.md).

[Operations](../operate/operations.md#settings) describes where processes look for the settings file.

- The default of a key is in brackets; a key without brackets is empty by default.
- A section in double brackets may be repeated. None is set by default; the pages show an example and the defaults.
- Environment variables override the file: `ca` of `[kafka.security.tls]` is `ACKSTREAM_KAFKA_SECURITY_TLS_CA`. Lists
  and tables are JSON: `ACKSTREAM_QUEUES='[{"name": "orders", "topics": ["orders/*"]}]'`.
- A duration has a unit: `250ms`, `10s`, `5m`, `1h`, `7d`; or ISO 8601: `PT10S`.
- A secret is a text, `{file = "/run/secrets/kafka"}`, or `{environment = "NAME"}`.
- In names `*` matches any characters.

Sections of other pages:

"""
_JOBS = """# Settings of the jobs

This page is for operators who tune the jobs. See also: [sizing](../operate/sizing.md), [settings](settings.md),
[applications](settings-applications.md), [gateway](settings-gateway.md).
"""
_APPLICATIONS = """# Settings of applications

This page is for operators who add an application, a tenant or another system. See also: [settings](settings.md),
[jobs](settings-jobs.md), [gateway](settings-gateway.md).
"""
_GATEWAY = """# Settings of the gateway

This page is for operators of a gateway. See also: [operate a gateway](../guides/gateway-operate.md),
[settings](settings.md), [jobs](settings-jobs.md), [applications](settings-applications.md).
"""
_PAGES = {
    "settings-jobs.md": (
        _JOBS,
        "for jobs",
        ("correlate", "clock", "archive", "twin", "persist", "settle", "queue", "query"),
    ),
    "settings-applications.md": (
        _APPLICATIONS,
        "for applications and other systems",
        ("queues", "quotas", "destinations", "routes", "connections"),
    ),
    "settings-gateway.md": (_GATEWAY, "for gateways", ("gateway",)),
}
"""The head of each page, the programs that its keys are for, and its sections; other sections are on the first page."""
_HOMES = {section: page for page, (*_, sections) in _PAGES.items() for section in sections}
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


def first_page() -> str:
    """Return the list of the sections of other pages, and the keys of those that have none."""
    rows = [f"- {who}: {_links(page)}\n" for page, (_, who, _) in _PAGES.items()]
    return "".join([_HEAD, *rows, *map(_part, _of(""))])


def _plane(name: str) -> str:
    return "".join([_PAGES[name][0], *map(_part, _of(name))])


PAGES = {"settings.md": first_page, **{name: partial(_plane, name) for name in _PAGES}}


def _of(page: str) -> list[Entry]:
    return [part for part in parts() if _HOMES.get(part.name.strip("[]").partition(".")[0], "") == page]


def _links(page: str) -> str:
    names = [name for part in _of(page) if "." not in (name := part.name.strip("[]"))]
    return ", ".join(f"[{name}]({page}#{name})" for name in names)


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
