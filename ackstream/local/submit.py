"""The whole ``spark-submit`` line of a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ackstream.errors import LocalError
from ackstream.local import jars, java

if TYPE_CHECKING:
    from rich.console import Console

    from ackstream.settings import Settings


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def submit_command(settings: Settings, job: str, *arguments: str, console: Console | None = None) -> list[str]:
    """Return the command that runs ``jobs/JOB.py``; the jars are fetched first where they are missing.

    :param settings: the ``spark`` part is used; its ``conf`` wins over ``conf/spark-defaults.conf``
    :param job: the job's name, such as ``correlate``
    :param arguments: what the job gets
    :param console: where the progress of the download goes
    :raises LocalError: there is no such job, no Java, or a jar cannot be fetched
    """
    script = entry_point(job)
    spark = settings.spark
    # the machine's name may not resolve, and its address may change while a laptop moves
    hosts = LOOPBACK if spark.master.startswith("local") else {}
    # of two entries with one key spark-submit takes the last
    entries = [*hosts.items(), *spark.conf.items()]
    return [
        str(jars.spark_home() / "bin" / "spark-submit"),
        *("--name", f"ackstream {job}"),
        *("--master", spark.master),
        *("--driver-memory", spark.driver_memory),
        *("--properties-file", str(conf("spark-defaults.conf"))),
        *("--jars", ",".join(map(str, jars.resolve("spark", console)))),
        *(text for key, value in entries for text in ("--conf", f"{key}={value}")),
        str(script),
        *arguments,
    ]


def submit_environment() -> dict[str, str]:
    """Return the environment for that command: this PySpark, this interpreter, the quiet log."""
    return {
        **os.environ,
        "SPARK_HOME": str(jars.spark_home()),
        # executors must run the interpreter that has the product installed
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "LOG4J_CONFIGURATION_FILE": conf("log4j2.properties").as_uri(),
    }


def run(command: list[str]) -> NoReturn:
    """Become that command: one process less to watch, and signals reach Spark itself.

    :raises LocalError: no Java, or the wrong one; said here because Spark says it with a stack trace
    """
    java.find()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, submit_environment())  # noqa: S606 - no shell is wanted


# -- Where the product's own files are: ``conf/`` and ``jobs/`` of the checkout or of the wheel, and the user's cache.


PACKAGE = Path(__file__).resolve().parent.parent


def installation_root() -> Path:
    """Return the directory that holds ``conf/`` and ``jobs/``: the checkout, or ``ackstream/_data`` of a wheel."""
    installed = PACKAGE / "_data"
    return installed if installed.is_dir() else PACKAGE.parent


def conf(name: str) -> Path:
    """Return a file of ``conf/``.

    :raises LocalError: when the installation lacks it
    """
    path = installation_root() / "conf" / name
    if not path.is_file():
        raise LocalError(f"The file {path} is missing from the installation of ackstream: install the package again.")
    return path


def entry_point(name: str) -> Path:
    """Return the script of a job, ``jobs/NAME.py``.

    :raises LocalError: when there is no such job; names those there are
    """
    path = installation_root() / "jobs" / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.py"))) or "none"
        raise LocalError(f"There is no job {name!r}; the jobs in {path.parent} are: {known}.")
    return path


def cache() -> Path:
    """Return the user's cache directory of the product, one for all checkouts (``XDG_CACHE_HOME`` is honoured)."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG base directory specification: a relative path is to be ignored
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "ackstream"
