"""The reference in docs is that of the present product, and has all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import typer.main

from ackstream import client
from ackstream.cli.main import app
from ackstream.errors import AckstreamError
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings
from ackstream.settings.base import Part
from tests.reference import settings
from tests.reference.pages import DOCS, PAGES

if TYPE_CHECKING:
    from pathlib import Path


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
    commands, tables = ((DOCS / name).read_text("utf-8") for name in ("commands.md", "tables.md"))
    known = typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
    assert {name for name in known if f"## ackstream {name}" not in commands} == set()
    for table in ALL_TABLES.values():
        part = tables.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        assert all(f"`{column}`" in part for column in table.schema.fieldNames())


def test_every_name_that_the_sdk_exports_is_on_a_page() -> None:
    shown = re.findall(r"(?m)^::: ackstream\.client\.(\w+)$", (DOCS / "api-client.md").read_text("utf-8"))
    names = {name: getattr(client, name) for name in client.__all__}
    errors = {
        name for name, one in names.items() if isinstance(one, type) and issubclass(one, (AckstreamError, DittoError))
    }
    # the errors have a page of their own; Answer and Subscription are words of the annotations
    assert sorted(shown) == sorted(names.keys() - errors - {"Answer", "Subscription"})
