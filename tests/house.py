"""The size and the language of the package, measured. ``python -m tests.house`` prints the table."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ackstream"
FILES = sorted(PACKAGE.rglob("*.py"))

BUDGETS: dict[str, tuple[int, int]] = {
    "settings": (1_981, 8),
    "protocol": (6_496, 31),
    "kafka": (2_021, 8),
    "spark": (3_298, 12),
    "lake": (1_743, 8),
    "jobs": (10_411, 39),
    "client": (10_175, 39),
    "dataframe": (397, 3),
    "redriving": (508, 3),
    "observe": (1_466, 7),
    "gateway": (5_592, 22),
    "connectivity": (4_244, 15),
    "aio": (619, 2),
    "testing": (750, 4),
    "local": (872, 3),
    "cli": (2_236, 7),
    "": (191, 3),
}
"""Lines and modules of each package. A module is a file with code: an empty ``__init__.py`` is none.

Raise a number only in a commit that names what the user gets for it, and lower another one for it."""

LINES, MODULES = 53_000, 214
"""The whole package. The goal is 53,000 lines in 215 modules."""

CORE = ("protocol", "settings", "kafka", "spark", "lake", "jobs", "client", "observe")
CORE_LINES = 34_796
"""What a newcomer opens: these packages without the query plane. The goal is 35,000."""
QUERY_PLANE = ("jobs/query", "client/queries", "protocol/queries.py")

SHORTEST, LONGEST = 120, 350
FLOOR = 12
"""Modules in one directory."""
PARAMETERS = 8

DIALECT = {
    "what for a noun": r"\bwhat(?:ever)? (?!kind\b|if\b)[a-z]",
    "programs that talk": r"\b(?:tells?|told|says?|said|speaks?|spoken|hears?|heard)\b",
    "nobody, everybody": r"\b(?:nobody|everybody|somebody|whoever|whomever)\b",
    "so much, so long": r"\bso (?:much|many|long|few|little|far) ",
    "is none": r"\b(?:is|are|was|were) none\b|\bcomes? to nothing\b",
    "Of a …": r"^Of (?:a|an|the|those|these|them|it|one|each|all|its|their)\b",
}
"""Home-made English, by the number of times that it stands in 1,000 words: docs/project/contributing.md, "English"."""


class Text(NamedTuple):
    """A text for people: a docstring, a comment, or a literal with at least three words."""

    line: int
    text: str


def package(path: Path) -> str:
    """Return the package of a file, ``""`` for one directly in ``ackstream/``."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def lines(path: Path) -> int:
    """Count the lines of a file."""
    return len(path.read_text("utf-8").splitlines())


def modules() -> list[Path]:
    """Return the files that have code."""
    return [path for path in FILES if path.stem != "__init__" or lines(path) > 1]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree; parsing takes most of the time of all that asks for them."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def texts(path: Path) -> Iterator[Text]:
    """Give what people read in a file: docstrings, comments, help, log lines and error texts."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 3:
            yield Text(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("# "))


@cache
def markers(path: Path) -> Counter[str]:
    """Count the markers of :data:`DIALECT` in a file, and under ``""`` the words."""
    found: Counter[str] = Counter()
    for text in texts(path):
        found[""] += len(text.text.split())
        for name, pattern in DIALECT.items():
            found[name] += len(re.findall(pattern, text.text, 0 if name == "Of a …" else re.IGNORECASE))
    return found


def dialect(paths: list[Path]) -> dict[str, float]:
    """Return how often each marker of :data:`DIALECT` stands in 1,000 words."""
    found = sum(map(markers, paths), Counter())
    return {name: 1_000 * found[name] / max(found[""], 1) for name in DIALECT}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, those for annotations too."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
    return found & known.keys()


def circles() -> list[set[str]]:
    """Return the groups of modules that import each other, annotations counted."""
    known = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES if path.stem != "__init__"}
    reached = {name: imports(path, known) for name, path in known.items()}
    while True:
        further = {name: found.union(*(reached[each] for each in found)) for name, found in reached.items()}
        if further == reached:
            break
        reached = further
    groups = {frozenset(each for each in found if name in reached[each]) for name, found in reached.items()}
    return [set(group) for group in groups if group]


def public_classes() -> dict[str, list[Path]]:
    """Return the files that define each public class."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return found


def long_signatures() -> dict[str, int]:
    """Return the functions with too many parameters, ``self`` and ``cls`` not counted, and how many they have.

    Commands are left out: Typer makes the options of a command from its parameters.
    """
    found = {}
    for path in FILES:
        if package(path) == "cli":
            continue
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > PARAMETERS:
                    found[f"{path.relative_to(PACKAGE)}:{node.name}"] = count
    return found


def report() -> Iterator[str]:
    """Give the lines of the table."""
    yield (f"{'package':<14}{'lines':>8}{'budget':>8}{'modules':>9}{'budget':>8}  dialect in 1,000 words")
    total = [0, 0]
    for name, (line_budget, module_budget) in BUDGETS.items():
        paths = [path for path in FILES if package(path) == name]
        size, count = sum(map(lines, paths)), len([path for path in modules() if package(path) == name])
        total = [total[0] + size, total[1] + count]
        rates = "  ".join(f"{rate:.1f}" for rate in dialect(paths).values())
        yield (f"{name or '(top)':<14}{size:>8,}{line_budget:>8,}{count:>9}{module_budget:>8}  {rates}")
    core = [path for path in FILES if package(path) in CORE]
    core = [path for path in core if not path.relative_to(PACKAGE).as_posix().startswith(QUERY_PLANE)]
    rates = "  ".join(f"{rate:.1f}" for rate in dialect(FILES).values())
    yield (f"{'all':<14}{total[0]:>8,}{LINES:>8,}{total[1]:>9}{MODULES:>8}  {rates}")
    yield (f"core {sum(map(lines, core)):,} of {CORE_LINES:,}; circles: {[len(each) for each in circles()]}")
    yield (f"markers: {', '.join(DIALECT)}")
    yield (f"classes of one name: {[name for name, paths in public_classes().items() if len(paths) > 1]}")
    yield (f"more than {PARAMETERS} parameters: {long_signatures()}")
    sizes = {path.relative_to(PACKAGE).as_posix(): lines(path) for path in modules()}
    yield (f"longer than {LONGEST}: { {name: size for name, size in sizes.items() if size > LONGEST} }")
    yield (f"shorter than {SHORTEST}: {len([1 for size in sizes.values() if size < SHORTEST])}")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in report()))
