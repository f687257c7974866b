"""The site of ``make docs``: its navigation has every page, and every link leads somewhere, there as in the project."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.scripts import module_of

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\((?P<path>[^)\s#:]*)(?:#(?P<anchor>[^)\s]*))?\)")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without what its tags would import."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


HOOK: Any = module_of(ROOT / "docs" / "site_pages.py")
CONFIGURATION: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)
DOCS = [f"docs/{path.relative_to(ROOT / 'docs')}" for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*DOCS, *(path for path in HOOK.PAGES if path.endswith(".md"))]
"""The pages of the project that are in the site."""
EVIDENCE = "docs/project/evidence/"
"""Tables that prove statements; readers search them."""
IN_MENU = [page for page in DOCS if not page.startswith(EVIDENCE)]
"""The pages that the menu names."""
LONGEST = 1_800
"""Words of a page, with those of its code."""
TOTAL = 45_000
"""Words of README and all pages of docs without evidence, as ``wc -w`` counts them."""


def _named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(inner)


def test_the_navigation_names_every_page_once_except_evidence() -> None:
    named = list(_named(CONFIGURATION["nav"]))
    assert sorted(named) == sorted([*(page.removeprefix("docs/") for page in IN_MENU), *HOOK.PAGES.values()])
    assert CONFIGURATION["not_in_nav"].split() == [f"/{EVIDENCE.removeprefix('docs/')}"]


def test_a_page_of_the_project_links_every_page_of_evidence() -> None:
    links = {link["path"] for link in _LINK.finditer(_text("docs/project/contributing.md"))}
    assert {posixpath.relpath(page, "docs/project") for page in set(DOCS) - set(IN_MENU)} <= links


def test_the_list_for_programs_has_a_line_about_every_page_in_the_order_of_the_navigation() -> None:
    lines = [line for line in _text("docs/llms.txt").splitlines() if line.startswith("- ")]
    listed = [re.fullmatch(r"- \[[^\]]+]\((?P<path>[^)]+)\): .+", line) for line in lines]
    paths = [entry and f"docs/{entry['path']}" for entry in listed]
    navigation = [f"docs/{path}" for path in _named(CONFIGURATION["nav"]) if path not in HOOK.PAGES.values()]
    assert paths[: len(navigation)] == navigation
    assert sorted(map(str, paths[len(navigation) :])) == sorted(set(DOCS) - set(IN_MENU))


def _words(page: str) -> int:
    return len((ROOT / page).read_text("utf-8").split())


@pytest.mark.parametrize("page", IN_MENU)
def test_a_page_has_at_most_1800_words(page: str) -> None:
    assert _words(page) <= LONGEST, "divide the page by a reader's question"


def test_readme_and_docs_have_at_most_45000_words() -> None:
    words = {page: _words(page) for page in ("README.md", *IN_MENU)}
    longest = sorted(words, key=lambda page: -words[page])[:5]
    assert sum(words.values()) <= TOTAL, f"say a fact once; the longest pages: {longest}"


def test_every_file_that_the_hook_adds_exists() -> None:
    assert all((ROOT / path).is_file() for path in HOOK.PAGES)


@lru_cache
def _text(path: str) -> str:
    """Return a page without its code, whose lines and brackets are no headings and links."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", (ROOT / path).read_text("utf-8"))
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", "] ("), text)


def _slug_of_site(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _slug_of_repository(title: str) -> str:
    return re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-")


@lru_cache
def _anchors(path: str) -> frozenset[str]:
    """Return the anchors of a page's headings that the site and the repository make alike."""
    titles = [title.replace("`", "") for title in re.findall(r"(?m)^#+ (.*)$", _text(path))]
    return frozenset(map(_slug_of_site, titles)) & frozenset(map(_slug_of_repository, titles))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: str) -> None:
    broken = []
    for link in _LINK.finditer(_text(page)):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link["path"])) if link["path"] else page
        if not (ROOT / target).is_file() or (link["anchor"] and link["anchor"] not in _anchors(target)):
            broken.append(link[0])
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_place_in_the_site(page: str) -> None:
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*")}
    folder = posixpath.dirname(HOOK.PAGES.get(page, page.removeprefix("docs/")))
    places = {
        posixpath.normpath(posixpath.join(folder, link["path"]))
        for link in _LINK.finditer(HOOK.with_links(_text(page), page))
        if link["path"]
    }
    assert places <= files | set(HOOK.PAGES.values())


@pytest.mark.parametrize("page", PAGES)
def test_a_list_and_a_table_begin_after_an_empty_line(page: str) -> None:
    """Elsewhere the site shows them as the end of the paragraph."""
    lines = _text(page).splitlines()
    begin = re.compile(r"([-*]|\d+\.) |\|")
    wrong = [
        line
        for before, line in pairwise(lines)
        if begin.match(line) and before.strip() and not begin.match(before) and not before.startswith(" ")
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("README.md", "[a](docs/compatibility/amps.md#x)", "[a](compatibility/amps.md#x)"),
        ("README.md", "[a](LICENSE)", "[a](license.md)"),
        ("docs/operate/security.md", "[a](../../SECURITY.md)", "[a](../vulnerabilities.md)"),
        ("docs/reference/wire.md", "[a](../clients/A.java), [b](#c), [d](https://e.example/f)", None),
        ("benchmarks/README.md", "[a](../docs/compatibility/amps.md)", "[a](compatibility/amps.md)"),
    ],
)
def test_a_link_is_moved_to_its_place_in_the_site(page: str, link: str, moved: str | None) -> None:
    assert HOOK.with_links(link, page) == (moved or link)


def test_a_reference_of_a_docstring_is_shown_as_code_alone() -> None:
    assert HOOK.on_page_content("see :meth:<code>~a.B.take</code>") == "see <code>a.B.take</code>"
