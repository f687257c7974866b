"""Locations of an installation: ``conf/`` and ``jobs/`` of the checkout or the wheel, its PySpark, the user's cache.

A module of its own, since both the jars and the ``spark-submit`` line need it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from ackstream.errors import LocalError

PACKAGE = Path(__file__).resolve().parent.parent


def installation_root() -> Path:
    """Return the directory that holds ``conf/`` and ``jobs/``: the checkout, or ``ackstream/_data`` of a wheel."""
    installed = PACKAGE / "_data"
    return installed if installed.is_dir() else PACKAGE.parent


def conf(name: str) -> Path:
    """Return a file of ``conf/``.

    :raises LocalError: the installation lacks it
    """
    path = installation_root() / "conf" / name
    if not path.is_file():
        raise LocalError(f"The file {path} is missing from the installation of ackstream: install the package again.")
    return path


def entry_point(name: str) -> Path:
    """Return the script of a job, ``jobs/NAME.py``.

    :raises LocalError: there is no such job; the sentence names those that exist
    """
    path = installation_root() / "jobs" / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.py"))) or "none"
        raise LocalError(f"There is no job {name!r}; the jobs in {path.parent} are: {known}.")
    return path


def spark_home() -> Path:
    """Return the directory of the installed PySpark, whatever ``SPARK_HOME`` says: versions must agree.

    :raises LocalError: PySpark is not installed
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalError("PySpark is not installed beside ackstream: run `pip install ackstream` again.")
    return Path(spec.origin).resolve().parent


def cache() -> Path:
    """Return the user's cache directory of the product, one for all checkouts (``XDG_CACHE_HOME`` is honoured)."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG base directory specification: ignore a relative path
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "ackstream"
