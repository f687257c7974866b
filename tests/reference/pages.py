"""The pages of docs, and the OpenAPI document, that are made of the product itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ackstream.gateway.page.pages import DOCUMENT
from tests.contract import openapi
from tests.reference import commands, settings, tables, topics

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "asyncapi.json": topics.as_json,
    DOCUMENT: openapi.as_json,
    DOCS / "reference/topics.md": topics.as_page,
    DOCS / "reference/settings.md": settings.page,
    DOCS / "reference/tables.md": tables.page,
    DOCS / "reference/commands.md": commands.page,
}
"""The files, and what writes their text."""
