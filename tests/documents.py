"""The reference documents, sentence by sentence: their states, and the tests that show them.

``python -m tests.documents`` writes docs/project/evidence/documents.md from the files in tests/vectors/documents, one
per document.
"""

from __future__ import annotations

import ast
import posixpath
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from tests.conformance.scenarios import coverage

ROOT = Path(__file__).parent.parent
DIRECTORY = ROOT / "tests/vectors/documents"
PAGE = ROOT / "docs/project/evidence/documents.md"
FILES = ("ditto-1.4", "ditto", "amps", "connext", "solace", "product")
"""The documents in the order of their ids."""

RUNNING = "tests/integration/"
SCENARIOS = {"test_scenarios": ("amps", "solace"), "test_reader_scenarios": ("rti",)}
"""Files of scenarios by the modules that run them."""

INTRODUCTION = """\
# The reference documents, sentence by sentence

Made by `python -m tests.documents` of the files in tests/vectors/documents: change those, and run it.

- *works*: on the running system, by the API of a user or by records on the wire. Tests in tests/integration show it,
  against a real broker, with the shipped settings; those of queues, mirrors and archive shorten the intervals between
  batches, and those about a setting set it. Other tests where a rule alone is at stake.
- *differs*: by decision, with the reason.
- *open*: not done yet, with what is missing.

The pages [Ditto](../../compatibility/ditto.md), [AMPS](../../compatibility/amps.md),
[Connext](../../compatibility/connext.md) and [Solace](../../compatibility/solace.md) describe the whole.
"""


class Sentence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence, default, limit, table row or example.

    :ivar tests: those that show it, as ``path::name``, with the id of a scenario in brackets
    :ivar reason: why it differs, or what is missing
    :ivar pure: why no test on the running system shows what works
    :ivar item: the part of the plan that an open sentence belongs to
    """

    says: str
    state: Literal["works", "differs", "open"]
    tests: tuple[str, ...] = ()
    reason: str = ""
    pure: str = ""
    item: int = 0


class Document(msgspec.Struct, frozen=True):
    """A reference document; ``pages`` of docs say more about it."""

    title: str
    pages: tuple[str, ...]
    sentences: dict[str, Sentence]


@lru_cache
def load() -> dict[str, Document]:
    """Return the documents by the names of their files."""
    found = {}
    for name in FILES:
        fields = msgspec.toml.decode((DIRECTORY / f"{name}.toml").read_bytes())
        title, pages = fields.pop("title"), tuple(fields.pop("pages"))
        found[name] = Document(title, pages, msgspec.convert(fields, dict[str, Sentence]))
    return found


def exists(test: str) -> bool:
    """Tell whether there is a test of this name; a scenario in brackets must be one that it runs."""
    path, function, scenario = _parts(test)
    return function in _tests_in(path) and (not scenario or scenario in _scenarios_of(path))


def _parts(test: str) -> tuple[str, str, str]:
    path, _, name = test.partition("::")
    function, _, scenario = name.rstrip("]").partition("[")
    return path, function, scenario


@lru_cache
def _tests_in(path: str) -> frozenset[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text("utf-8") if file.is_file() else "")
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return frozenset(node.name for node in functions if node.name.startswith("test_") or _is_story(node))


def _is_story(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is one of those that run together, see tests/harness/stories.py."""
    return any(isinstance(one, ast.Name) and one.id == "story" for one in function.decorator_list)


def _scenarios_of(path: str) -> set[str]:
    loaded = [one for file in SCENARIOS.get(Path(path).stem, ()) for one in coverage.load(file)]
    return {one.id for one in loaded if coverage.is_on_system(one)}


# -- the page ----------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of docs/project/evidence/documents.md."""
    documents = load().values()
    parts = [INTRODUCTION, _summary()]
    for document in documents:
        rows = [_row(identity, one) for identity, one in document.sentences.items()]
        more = ", ".join(
            f"[{posixpath.basename(name)}]({posixpath.relpath(name, 'project/evidence')})" for name in document.pages
        )
        head = ["| id | sentence | state | tests |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([f"## {document.title}", "", f"See {more}.", "", *head, *rows, ""]))
    parts.append(_not_seen())
    return "\n".join(parts)


def _summary() -> str:
    counts = {document.title: Counter(one.state for one in document.sentences.values()) for document in load().values()}
    counts["all"] = sum(counts.values(), Counter())
    rows = [
        f"| {title} | {found.total()} | {found['works']} | {found['differs']} | {found['open']} |"
        for title, found in counts.items()
    ]
    head = ["| document | sentences | works | differs | open |", "| --- | ---: | ---: | ---: | ---: |"]
    return "\n".join([*head, *rows, ""])


def _row(identity: str, one: Sentence) -> str:
    state = f"{one.state}: {one.reason}" if one.reason else one.state
    shown = _named(one.tests) + (f" ({one.pure})" if one.pure else "")
    return "| " + " | ".join(text.replace("|", "\\|") for text in (identity, one.says, state, shown or "-")) + " |"


def _named(tests: tuple[str, ...]) -> str:
    """Name tests, each file and each function once: ``a.py::x, ::y[1, 2]; b.py::z``."""
    files: dict[str, dict[str, list[str]]] = {}
    for test in tests:
        path, function, scenario = _parts(test)
        files.setdefault(path, {}).setdefault(function, []).append(scenario)
    return "; ".join(
        path + ", ".join(f"::{function}" + (f"[{', '.join(ids)}]" if ids[0] else "") for function, ids in found.items())
        for path, found in files.items()
    )


def _not_seen() -> str:
    """List the scenarios that the running system does not show."""
    number = sum(len(coverage.load(file)) for file in ("amps", "solace", "rti"))
    reasons = coverage.NOT_RUN | coverage.PURE_ONLY
    begin = f"Of the {number} scenarios in tests/vectors/scenarios, {number - len(reasons)} run on the running system."
    head = ["## Scenarios", "", f"{begin} The others:", "", "| scenario | why not |", "| --- | --- |"]
    return "\n".join([*head, *(f"| {identity} | {reasons[identity]} |" for identity in sorted(reasons)), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
