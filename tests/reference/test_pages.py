"""The reference in docs is that of the present product, and has all of it."""

from __future__ import annotations

import re
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
from tests.reference import commands, settings
from tests.reference.pages import DOCS, PAGES

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
    commands, tables = ((DOCS / "reference" / name).read_text("utf-8") for name in ("commands.md", "tables.md"))
    known = typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
    assert {name for name in known if f"## ackstream {name}" not in commands} == set()
    for table in ALL_TABLES.values():
        part = tables.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
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
