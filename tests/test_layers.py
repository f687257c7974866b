"""Imports go down only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ackstream"
# what each part may import of ours; errors and settings are everybody's but protocol's
ALLOWED: dict[str, set[str]] = {
    "protocol": set(),
    "errors": set(),
    "parts": {"protocol"},
    "connections": {"protocol"},
    "queues": {"protocol"},
    "destinations": {"protocol"},
    "settings": {"protocol", "connections", "queues", "destinations"},
    "topics": set(),
    "source": set(),
    "sink": set(),
    "clock": set(),
    "checkpoint": set(),
    "local": set(),
    "session": {"local"},
    "correlation": {"protocol"},
    "delivery": {"protocol", "lake", "queues"},
    "lake": {"protocol"},
    "twin": {"protocol", "lake"},
    "publishing": {"protocol", "lake", "destinations"},
    "client": {"protocol", "publishing", "delivery"},
    "connectivity": {"protocol", "client", "connections"},
}
COMMON = {"errors", "parts", "settings", "offsets", "options", "source", "sink", "clock", "checkpoint"}
PURE = ("pyspark", "kafka", "pandas", "delta", "time", "datetime", "random", "uuid", "socket", "os")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _parts(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("ackstream.")}


def _modules(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    common = set() if part in ("protocol", "errors") else COMMON
    for module in _modules(part):
        wrong = _parts(_imports(module)) - ALLOWED[part] - common - {part, "__version__"}
        assert not wrong, f"{module.relative_to(PACKAGE)} imports {sorted(wrong)}"


def test_the_protocol_is_pure() -> None:
    for module in _modules("protocol"):
        wrong = {name for name in _imports(module) if name.split(".")[0] in PURE}
        assert not wrong - {
            "datetime",
            "datetime.datetime",
            "datetime.UTC",
            "datetime.timezone",
            "datetime.timedelta",
        }, f"{module.name} imports {sorted(wrong)}"


@pytest.mark.parametrize("job", sorted((PACKAGE.parent / "jobs").glob("*.py")), ids=lambda path: path.stem)
def test_a_job_is_a_thin_entry_point(job: Path) -> None:
    assert len(job.read_text("utf-8").splitlines()) < 60
