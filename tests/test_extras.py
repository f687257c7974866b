"""`pip install ackstream` is the client; what needs an extra that is not installed names it in one sentence."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ackstream.errors import EXTRAS
from tests.test_requirements import PROJECT, pins

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "ackstream").rglob("*.py"))
CLIENT = {"kafka", "lz4", "msgspec", "pydantic", "pydantic_core", "snappy", "tomli", "zstandard"}
"""The packages of the client, as they are imported."""

WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {missing!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
{code}
"""
ALL = {package for packages in EXTRAS.values() for package in packages}


def _python(missing: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment that lacks packages."""
    program = WITHOUT.format(missing=missing, code=code)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def _command(missing: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    run = f"import runpy; sys.argv = {['ackstream', *arguments]!r}; runpy.run_module('ackstream', run_name='__main__')"
    return _python(missing, run)


def _imported(path: Path) -> set[str]:
    """Return what a module imports when it runs: the first parts of the names."""
    found, left = set[str](), list[ast.AST](ast.parse(path.read_text("utf-8")).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        left += ast.iter_child_nodes(node)
    return {name.partition(".")[0] for name in found}


def test_each_package_that_is_imported_is_of_the_client_or_of_a_named_extra() -> None:
    imported = set().union(*map(_imported, MODULES)) - sys.stdlib_module_names - {"ackstream"}
    assert imported == CLIENT | ALL


@pytest.mark.parametrize(("extra", "packages"), EXTRAS.items(), ids=EXTRAS)
def test_an_extra_installs_the_packages_that_name_it(extra: str, packages: tuple[str, ...]) -> None:
    lines = pins.of_extras(PROJECT["optional-dependencies"], extra)
    installed = {canonicalize_name(Requirement(line).name) for line in lines}
    # PySpark requires exactly this one
    installed |= {"py4j"} if "pyspark" in installed else set()
    distributions = packages_distributions()
    for package in packages:
        assert {canonicalize_name(name) for name in distributions[package]} & installed, package


MISSING = [
    ("cli", "ackstream.cli.main", "typer"),
    ("spark", "ackstream.spark.session", "py4j"),
    ("spark", "ackstream.jobs.correlate.job", "pandas"),
    ("testing", "ackstream.jobs.correlate.shard", "numpy"),
    ("spark", "ackstream.lake.tables", "pyarrow"),
    ("lake", "ackstream.lake.reading as lake; lake.check(None, '')", "deltalake"),
    ("gateway", "ackstream.gateway.exchange", "anyio"),
    ("connect", "ackstream.connectivity.transports.http_push", "httpx"),
    ("connect", "ackstream.connectivity.transports.mqtt", "paho"),
    ("connect", "ackstream.connectivity.transports.amqp091", "pika"),
    ("amqp-10", "ackstream.connectivity.transports.amqp10", "proton"),
    ("metrics", "ackstream.observe.endpoint as served; served.registry(None)", "prometheus_client"),
]


@pytest.mark.parametrize(("extra", "module", "package"), MISSING, ids=[module for _, module, _ in MISSING])
def test_an_import_names_the_extra_that_it_lacks(extra: str, module: str, package: str) -> None:
    done = _python(set(EXTRAS[extra]), f"import {module}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ackstream.errors.MissingExtraError: The extra {extra} of ackstream is not installed (")
    assert last.endswith(f" needs {package}): run `pip install 'ackstream[{extra}]'`.")


def test_a_file_in_pem_names_the_extra_that_it_lacks() -> None:
    done = _python({*EXTRAS["tls"]}, "from ackstream.settings.security import subject; subject('')")
    assert (done.returncode, "The extra tls of ackstream is not installed (" in done.stderr) == (1, True)


COMMANDS = [
    ("gateway", "demo"),
    ("spark", "submit", "correlate", "--dry-run"),
    ("spark", "inflight"),
    ("spark", "maintain"),
    ("spark", "register"),
    ("spark", "migrate", "correlate"),
    ("lake", "outcomes", "slowest-labels"),
    ("gateway", "gateway"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=[words[1] for words in COMMANDS])
def test_a_command_names_the_extra_that_it_lacks(words: tuple[str, ...]) -> None:
    extra, *arguments = words
    done = _command(ALL - set(EXTRAS["cli"]), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"The extra {extra} of ackstream is not installed (ackstream.")
    assert sentence.endswith(f"run `pip install 'ackstream[{extra}]'`.")


def test_the_client_alone_has_a_command_that_names_the_extra_of_the_others() -> None:
    done = _command(ALL, "--help")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("run `pip install 'ackstream[cli]'`.\n")
    assert len(done.stderr.splitlines()) == 1


def test_the_client_runs_without_any_extra() -> None:
    parts = [path for path in MODULES if path.relative_to(ROOT).parts[1] in ("client", "kafka", "protocol", "settings")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in parts]
    done = _python(ALL, "\n".join(f"import {name}" for name in names))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sentence_comes_in_a_program_that_has_imported_nothing_else() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ackstream.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("The extra cli of ackstream is not installed (ackstream.cli.main needs typer): run ")


def test_imports_of_other_programs_fail_as_they_always_do() -> None:
    code = "import importlib.util, ackstream; assert importlib.util.find_spec('pika') is None; import pika"
    done = _python({"pika"}, code)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pika'"
