"""The wheel, built from this checkout and installed in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from ackstream import __version__
from ackstream.local import jars

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def _run(command: list[str | Path], directory: Path) -> str:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("ACKSTREAM_", "PYTHON", "VIRTUAL_ENV"))
    }
    finished = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install the wheel without a network: its dependencies are those that the tests run with."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", directory, ROOT], directory)
    (wheel,) = directory.glob("ackstream-*.whl")
    home = directory / "environment"
    venv.create(home, symlinks=True)
    _run([*pip, "--python", home / "bin" / "python", "install", "--no-index", "--no-deps", wheel], directory)
    # of a directory named here the files *.pth do not count, and so an editable installation in it neither
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return home


@pytest.fixture(scope="module")
def ackstream(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    directory = tmp_path_factory.mktemp("elsewhere")
    return lambda *arguments: _run([installed / "bin" / "ackstream", *arguments], directory)


def test_an_installed_command_explains_itself(ackstream: Callable[..., str]) -> None:
    text = ackstream("--help")
    assert "Durable acknowledgements for commands and records over Kafka." in text
    assert all(name in text for name in ("demo", "up", "submit", "gateway", "migrate"))


def test_the_package_is_typed_and_has_its_licence(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/ackstream")
    assert (package / "py.typed").is_file()
    (licence,) = package.parent.glob("ackstream-*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_client_and_the_command_line_show_the_version_of_the_package(
    ackstream: Callable[..., str], installed: Path
) -> None:
    (metadata,) = installed.glob("lib/python*/site-packages/ackstream-*.dist-info/METADATA")
    assert f"\nVersion: {__version__}\n" in metadata.read_text("utf-8")
    assert ackstream("--version") == f"ackstream {__version__}\n"


def test_the_documents_of_the_wire_and_of_the_gateway_are_installed(
    ackstream: Callable[..., str], installed: Path
) -> None:
    assert json.loads(ackstream("topics", "--asyncapi")) == json.loads((ROOT / "docs" / "asyncapi.json").read_bytes())
    (package,) = installed.glob("lib/python*/site-packages/ackstream")
    document = Path("gateway", "page", "openapi.json")
    assert (package / document).read_bytes() == (ROOT / "ackstream" / document).read_bytes()


def test_all_files_of_conf_and_all_jobs_are_installed(installed: Path) -> None:
    (data,) = installed.glob("lib/python*/site-packages/ackstream/_data")
    for name in ("conf", "jobs"):
        ours, theirs = (
            {
                path.relative_to(directory): (path.read_bytes(), os.access(path, os.X_OK))
                for path in directory.rglob("*")
                if path.is_file() and path.suffix != ".pyc"
            }
            for directory in (ROOT / name, data / name)
        )
        assert theirs == ours


@pytest.mark.parametrize("job", sorted(path.stem for path in (ROOT / "jobs").glob("*.py")))
def test_an_installed_job_is_submitted_with_the_files_of_its_installation(
    ackstream: Callable[..., str], installed: Path, tmp_path: Path, job: str
) -> None:
    assert jars.present("spark"), "`make jars` fetches them"
    settings, arguments = tmp_path / "settings.toml", ("copy",) if job == "mirror" else ()
    settings.write_text('[[destinations]]\nname = "copy"\npath = "/copy"\ntype = "async"\n', "utf-8")
    command = shlex.split(ackstream("--settings", str(settings), "submit", job, "--dry-run", *arguments))
    script, properties = Path(command[-1 - len(arguments)]), Path(command[command.index("--properties-file") + 1])
    assert (script.name, properties.name) == (f"{job}.py", f"{job}.properties")
    assert script.is_file()
    assert script.resolve().is_relative_to(installed.resolve())
    assert "spark.sql.extensions=io.delta" in properties.read_text("ascii")


def test_every_installed_module_can_be_imported_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, ackstream\n"
        "for found in pkgutil.walk_packages(ackstream.__path__, 'ackstream.'):\n"
        "    importlib.import_module(found.name)\n"
        "print(ackstream.__file__)"
    )
    printed = _run([installed / "bin" / "python", "-W", "ignore", "-c", code], tmp_path)
    assert Path(printed.strip()).resolve().is_relative_to(installed.resolve())


def test_the_cases_of_the_protocol_run_from_an_installation(ackstream: Callable[..., str]) -> None:
    lines = ackstream("conformance", str(ROOT / "tests" / "vectors" / "cases")).splitlines()
    assert len(lines) > 10
    assert all(line.endswith(" passed, 0 failed, 0 unknown") for line in lines)


def test_the_demo_of_an_installation_has_its_devices(ackstream: Callable[..., str], installed: Path) -> None:
    assert "simulated devices" in ackstream("demo", "--help")
    (data,) = installed.glob("lib/python*/site-packages/ackstream/_data")
    assert (data / "tests" / "demo" / "fleet.py").read_bytes() == (ROOT / "tests" / "demo" / "fleet.py").read_bytes()
