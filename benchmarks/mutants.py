"""Small changes to the pure cores, one at a time, in a copy: do their tests fail? No test covers a survivor.

``python -m benchmarks.mutants`` takes a sample of each core by a seed and writes ``results/mutants.json`` with the
score and every survivor. ``--core NAME`` takes one core, ``--all`` every mutant of it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.pages import RESULTS

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("ackstream", "tests", "conf", "jobs", "benchmarks", "docs", "notebooks")
JOBS, TESTS = "ackstream/jobs", "tests/jobs"
CORES: dict[str, tuple[str, ...]] = {
    f"{JOBS}/correlate/shard.py": (f"{TESTS}/correlate/test_shard.py", f"{TESTS}/correlate"),
    f"{JOBS}/correlate/state.py": (f"{TESTS}/correlate/test_state.py", f"{TESTS}/correlate"),
    f"{JOBS}/correlate/decision.py": (f"{TESTS}/correlate/test_shard.py", f"{TESTS}/correlate"),
    "ackstream/spark/records.py": ("tests/spark/test_records.py",),
    "ackstream/spark/clock.py": ("tests/spark/test_clock.py",),
    "ackstream/spark/lease.py": ("tests/spark/test_lease.py",),
    "ackstream/protocol/intervals.py": ("tests/protocol/test_intervals.py",),
    "ackstream/protocol/ledger.py": ("tests/protocol/test_ledger.py", f"{TESTS}/correlate/test_records.py"),
    f"{JOBS}/twin/batch.py": (f"{TESTS}/twin/test_batch.py", f"{TESTS}/twin"),
    f"{JOBS}/persist/decisions.py": (f"{TESTS}/persist/test_decisions.py", f"{TESTS}/persist"),
    f"{JOBS}/persist/publishers.py": (f"{TESTS}/persist/test_publishers.py", f"{TESTS}/persist"),
    f"{JOBS}/settle/completion.py": (f"{TESTS}/settle/test_completion.py", f"{TESTS}/settle"),
    f"{JOBS}/settle/shard.py": (f"{TESTS}/settle/test_shard.py", f"{TESTS}/settle"),
    f"{JOBS}/settle/state.py": (f"{TESTS}/settle/test_state.py", f"{TESTS}/settle"),
    f"{JOBS}/queues/queue.py": (f"{TESTS}/queues/test_queue.py", f"{TESTS}/queues"),
    f"{JOBS}/queues/endpoint.py": (f"{TESTS}/queues/test_endpoint.py", f"{TESTS}/queues"),
    f"{JOBS}/queues/state.py": (f"{TESTS}/queues/test_state.py", f"{TESTS}/queues"),
    f"{JOBS}/query/plan.py": (f"{TESTS}/query",),
    "ackstream/client/publishing/_unacknowledged.py": (
        "tests/client/publishing/test_unacknowledged.py",
        "tests/client/publishing/test_publisher.py",
    ),
    "ackstream/client/reading/_writer_history.py": ("tests/client/reading/test_writer_history.py",),
}
"""The modules that decide, and their tests: those first that most likely fail."""

SAMPLE = 12
PATIENCE_SECONDS = 300
ORDER = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
         ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}


class Mutant(NamedTuple):
    """A change to the source of a module: the text between two positions of its UTF-8 is replaced."""

    line: int
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


class Changes:
    """The mutants of one module."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> list[Mutant]:
        """Return them in the order of the text."""
        return sorted(mutant for node in _executed(ast.parse(self._data)) for mutant in self._of(node))

    def _of(self, node: Any) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield self._between(node.left, node.comparators[0], ORDER[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield self._between(node.left, node.right, OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            other = "or" if isinstance(node.op, ast.And) else "and"
            yield from (self._between(left, right, other) for left, right in pairwise(node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(node.lineno, self._at(node), self._at(node) + len("not"), "")
        elif (text := _other(node)) is not None:
            yield Mutant(node.lineno, self._at(node), self._at(node, end=True), text)

    def _at(self, node: Any, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return int(self._starts[line - 1] + column)

    def _between(self, left: Any, right: Any, text: str) -> Mutant:
        """Replace an operator, and keep the parentheses around the operands."""
        first, last = self._at(left, end=True), self._at(right)
        gap = self._data[first:last].decode()
        before, after = gap[: len(gap) - len(gap.lstrip(") \n"))], gap[len(gap.rstrip("( \n")) :]
        return Mutant(left.end_lineno, first, last, f"{before} {text} {after}")


def _other(node: Any) -> str | None:
    """Return the mutation of a name, a constant or a statement; ``None``: no mutation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
    if isinstance(node, ast.Name):
        return NAMES.get(node.id)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return "pass" if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)) and not is_text else None


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes within functions, without annotations, raised errors and log lines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in child.body:
                yield from _all(statement)
        else:
            yield from _executed(child)


def _all(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and ast.unparse(node).startswith("log.")):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name != "annotation":
                yield from _all(child)


def survives(directory: Path, tests: tuple[str, ...]) -> bool:
    """Return whether the tests pass in a copy; those behind the first that fail are not run."""
    pytest = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not integration and not long"]
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    options: Any = {"cwd": directory, "env": environment, "capture_output": True, "timeout": PATIENCE_SECONDS}
    try:
        return all(subprocess.run([*pytest, part], check=False, **options).returncode == 0 for part in tests)
    except subprocess.TimeoutExpired:
        return False


def run(seed: int, cores: dict[str, tuple[str, ...]], sample: int | None) -> dict[str, Any]:
    """Try mutants of the cores; return the score and the survivors of each."""
    console, reports = Console(), {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for name in COPIED:
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for name in ("pyproject.toml", "README.md", "Makefile"):
            shutil.copy(ROOT / name, directory / name)
        for core, tests in cores.items():
            if not survives(directory, tests):
                sys.exit(f"The tests of {core} fail without any change: {' '.join(tests)}")
            path = directory / core
            source = path.read_bytes()
            known = Changes(source.decode()).found()
            # each core has the same sample whatever the others are
            chosen = known if sample is None else random.Random(seed).sample(known, min(sample, len(known)))
            ends: Counter[str] = Counter()
            alive = []
            for mutant in sorted(chosen):
                path.write_bytes(mutant.applied(source))
                ends["survived" if (lives := survives(directory, tests)) else "killed"] += 1
                if lives:
                    line = source.decode().splitlines()[mutant.line - 1].strip()
                    alive.append(f"{mutant.line}: {line}  ->  {mutant.text.strip() or 'without not'}")
                    console.print(f"[red]{core}:{alive[-1]}", markup=True, highlight=False)
            path.write_bytes(source)
            reports[core] = {"mutants": len(known), **ends, "survivors": alive}
            console.print(f"{core}: {ends['killed']} of {len(chosen)} killed, {len(known)} known")
    return reports


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants of each core")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--core", action="append", help="only cores whose path contains this; may be repeated")
    arguments = parser.parse_args()
    wanted = arguments.core or [""]
    cores = {core: tests for core, tests in CORES.items() if any(part in core for part in wanted)}
    reports = run(arguments.seed, cores, None if arguments.all else arguments.sample)
    total = {key: sum(report.get(key, 0) for report in reports.values()) for key in ("killed", "survived")}
    score = round(total["killed"] / max(1, sum(total.values())), 3)
    result = {"benchmark": "mutants", "seed": arguments.seed, **total, "score": score, "cores": reports}
    print(json.dumps({**result, "cores": len(reports)}))
    if not arguments.core:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "mutants.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
