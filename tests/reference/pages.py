"""The pages of docs, and the OpenAPI document, that are made of the product itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ackstream.gateway.page.pages import DOCUMENT
from tests.contract import openapi
from tests.reference import commands, settings, tables, topics

DOCS = Path(__file__).parents[2] / "docs"
DIVIDED: tuple[dict[str, Callable[[], str]], ...] = (topics.PAGES, settings.PAGES, tables.PAGES, commands.PAGES)
"""Pages of the reference that belong together, by their names; the first one of each lists the others."""
PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "asyncapi.json": topics.as_json,
    DOCUMENT: openapi.as_json,
    **{DOCS / "reference" / name: text for pages in DIVIDED for name, text in pages.items()},
}
"""The files, and the functions that return their text."""
