"""Write anew what is trusted: the SHA-256 of the JVM jars, and the versions and hashes of the Python packages.

``make pins`` runs it after a change of versions in ``ivy.xml`` or ``pyproject.toml``. Review the difference: each line
is a file that an installation accepts from then on. The lists hold for Python 3.10 to 3.13 on all systems.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ackstream.local import jars

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OLDEST_PYTHON = "3.10"
HEADER = "# Written by `make pins`: do not edit.\n"

BUILD = ("pip>=26.1.2", "setuptools>=78.1.1", "wheel>=0.46.2", "hatchling>=1.27", "editables", "cffi>=1.17")
"""What installs, and what builds the packages that come as source: PySpark, the client of AMQP 1.0, ackstream."""

SPARKS = {"4.0": "4.0.0", "4.1": "4.1.1"}
"""Versions of Spark on which ``make test-sparks`` runs ``ackstream.dataframe``, beside that of the jobs."""

MODULES = {
    ROOT / "conf" / "ivy.xml": ("spark", "broker"),
    ROOT / "tests/harness/ivy.xml": (
        "artemis",
        "qpid",
        "ditto",
        "clients",
        "s3a",
        *(f"spark-{version}" for version in SPARKS),
    ),
    ROOT / "benchmarks/contenders/ivy.xml": ("compiler", "kafka-streams", "flink", "console"),
}


_OWN_EXTRAS = re.compile(r"ackstream\[(?P<extras>[a-z0-9,-]+)]")


def project() -> dict[str, Any]:
    """Read the part `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def sets() -> dict[str, Sequence[str]]:
    """Return the requirements of each list, by its name."""
    client: list[str] = project()["dependencies"]
    extras: Mapping[str, list[str]] = project()["optional-dependencies"]
    return {
        "build": BUILD,
        "client": client,
        "run": [*client, *of_extras(extras, "spark", "gateway", "connect", "lake", "metrics")],
        "dev": [*client, *of_extras(extras, "dev")],
        "amqp": [line for line in extras["amqp-10"] if not _OWN_EXTRAS.fullmatch(line)],
        "bench": extras["bench"],
        "audit": extras["audit"],
        "docs": extras["docs"],
        "release": extras["release"],
    }


def apart() -> dict[str, Sequence[str]]:
    """Return the lists of environments of their own, whose versions differ from those of the others."""
    client: list[str] = project()["dependencies"]
    sparks = {
        f"spark-{version}": [*client, f"pyspark=={exact}", "pandas>=2.2,<3", "pyarrow>=23.0.1"]
        for version, exact in SPARKS.items()
    }
    # the store of `make test-cluster` needs an older python-dateutil
    return {"store": ("moto[s3]>=5.1", "flask>=3", "flask-cors>=5"), **sparks}


def of_extras(extras: Mapping[str, Sequence[str]], *names: str) -> list[str]:
    """Return the requirements of extras, and of those that they include, each once."""
    found: dict[str, None] = {}
    for line in (line for name in names for line in extras[name]):
        own = _OWN_EXTRAS.fullmatch(line)
        found |= dict.fromkeys(of_extras(extras, *own["extras"].split(",")) if own else [line])
    return list(found)


def compiled(requirements: Sequence[str], *options: str) -> str:
    """Return the pinned packages that satisfy requirements, with markers for what differs between Pythons."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--no-config", "--no-header"]
    command += [
        "--python-version",
        OLDEST_PYTHON,
        "--no-annotate",
        "--allow-unsafe",
        "--generate-hashes",
        *options,
        "-",
    ]
    finished = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        command, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=True
    )
    return finished.stdout


def pin_packages() -> None:
    """Write ``requirements/*.txt``, in which a package has one version for one Python, save in those apart."""
    wanted = sets()
    with tempfile.TemporaryDirectory() as directory:
        whole = Path(directory) / "whole.txt"
        whole.write_text(compiled([line for lines in wanted.values() for line in lines]), "utf-8")
        for name, lines in wanted.items():
            _write(name, compiled(lines, "--constraint", str(whole)))
    for name, lines in apart().items():
        _write(name, compiled(lines))


def _write(name: str, packages: str) -> None:
    (HERE / f"{name}.txt").write_text(HEADER + packages, "utf-8")
    print(f"requirements/{name}.txt")


def fetched(configuration: str, module: Path) -> dict[str, str]:
    """Fetch the jars of a configuration without comparing them; return the SHA-256 of each by its path."""
    cache = jars._listing(configuration, module).parent  # noqa: SLF001 - they are the only other user
    cache.mkdir(parents=True, exist_ok=True)
    found = jars._fetch(cache, module, configuration, Console(stderr=True))  # noqa: SLF001 - see above
    return {str(jar.relative_to(cache)): hashlib.sha256(jar.read_bytes()).hexdigest() for jar in found}


def pin_jars() -> None:
    """Write ``jars.sha256`` beside each ``ivy.xml``, from jars that are fetched anew."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        for module, configurations in MODULES.items():
            found: dict[str, str] = {}
            for configuration in configurations:
                found |= fetched(configuration, module)
            lines = [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
            module.with_name(jars.PINS).write_text("".join(lines), "utf-8")
            print(module.with_name(jars.PINS).relative_to(ROOT))


if __name__ == "__main__":
    pin_packages()
    pin_jars()
