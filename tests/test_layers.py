"""Imports go down only: every package may import exactly what the table allows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ackstream"

WIRE = {"errors", "protocol", "protocol.rql", "protocol.ditto"}
BASE = WIRE | {"settings"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "protocol": {"errors"},
    "protocol.rql": {"errors", "protocol"},
    "protocol.ditto": {"errors", "protocol", "protocol.rql"},
    "settings": WIRE,
    "observe": BASE | {"kafka"},
    "local": BASE | {"kafka"},
    "kafka": BASE,
    "spark": BASE | {"kafka", "local", "observe"},
    "lake": BASE,
    **{
        f"jobs.{job}": BASE | {"kafka", "spark", "lake", "observe"}
        for job in ("correlate", "archive", "twin", "persist", "query", "settle", "queues", "mirror")
    },
    "client": BASE | {"kafka", "lake"},
    "aio": BASE | {"client"},
    "dataframe": BASE | {"kafka", "client"},
    "redriving": BASE | {"kafka", "lake", "client"},
    "gateway": BASE | {"kafka", "lake", "client", "observe", "redriving"},
    "connectivity": BASE | {"kafka", "client", "observe"},
}
"""The command line, the demo inside it and the system in memory are the top: they may import everything."""

TOP = {"__main__", "cli", "testing"}
NESTED = {"protocol", "jobs"}
PURE = {"protocol", "protocol.rql", "protocol.ditto"}
IMPURE = {"pyspark", "kafka", "pandas", "delta", "time", "random", "uuid", "socket", "os"}


def _package(module: str) -> str:
    parts = module.split(".")[1:]
    if len(parts) > 1 and parts[0] in NESTED and (PACKAGE / parts[0] / parts[1]).is_dir():
        return ".".join(parts[:2])
    return parts[0] if parts else ""


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` imports the module; `from module import name` only the module
            for alias in node.names:
                module = PACKAGE.parent.joinpath(*node.module.split("."), alias.name)
                whole = module.is_dir() or module.with_suffix(".py").exists()
                found.add(f"{node.module}.{alias.name}" if whole else node.module)
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


def test_every_package_has_its_line_in_the_table() -> None:
    packages = {_package(_name(path)) for path in MODULES if path.name != "__init__.py"}
    assert packages == ALLOWED.keys() | TOP


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    package = _package(_name(path))
    if package in TOP or _name(path) in ("ackstream.protocol", "ackstream.jobs", "ackstream.client"):
        return
    ours = {_package(name) for name in _imports(path) if name.startswith("ackstream.")} - {package}
    assert not ours - ALLOWED[package], f"{_name(path)} imports {sorted(ours - ALLOWED[package])}"


@pytest.mark.parametrize("path", [path for path in MODULES if _package(_name(path)) in PURE], ids=_name)
def test_the_protocol_is_pure(path: Path) -> None:
    wrong = {name for name in _imports(path) if name.split(".")[0] in IMPURE}
    assert not wrong, f"{_name(path)} imports {sorted(wrong)}"


@pytest.mark.parametrize("job", sorted((PACKAGE.parent / "jobs").glob("*.py")), ids=lambda path: path.stem)
def test_a_job_is_a_thin_entry_point(job: Path) -> None:
    assert len(job.read_text("utf-8").splitlines()) < 60
