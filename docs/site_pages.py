"""Takes the pages at the root of the project into the site, which has those of ``docs``; a hook of MkDocs.

README is the home page. A link to one of these pages leads to its place in the site, so each page is written once, and
its links work in the repository, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contribute.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "vulnerabilities.md",
    "LICENSE": "license.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files of the project by where they are, and their places in the site."""

_ROLE = re.compile(r":(?:attr|class|exc|func|meth|mod):<code>~?")
_LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def content(path: str) -> str:
    """Return a page at the root of the project as it is in the site."""
    text = (ROOT / path).read_text("utf-8")
    return with_links(text, path) if path.endswith(".md") else f"# Licence\n\n```text\n{text}```\n"


def with_links(text: str, path: str) -> str:
    """Return the text of a page whose links lead to places in the site.

    :param path: of the page within the project
    """
    folder = posixpath.dirname(_place(path))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link["path"]))
        return f"]({posixpath.relpath(_place(target), folder or '.')}{link['anchor'] or ''})"

    return _LINK.sub(moved, text)


def _place(path: str) -> str:
    return PAGES.get(path, path.removeprefix("docs/"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the files of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests have no MkDocs

    for path, place in PAGES.items():
        files.append(File.generated(config, place, content=content(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page in ``docs`` lead to these pages."""
    source = page.file.src_uri
    return markdown if source in PAGES.values() else with_links(markdown, f"docs/{source}")


def on_page_content(html: str, **_: Any) -> str:
    """Show what docstrings refer to without Sphinx's words for what it is."""
    return _ROLE.sub("<code>", html)
