"""Where the product's own files are: ``conf/`` and ``jobs/`` of the checkout or of the wheel, and the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from ackstream.errors import LocalError

PACKAGE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """Return the directory that holds ``conf/`` and ``jobs/``: the checkout, or ``ackstream/_data`` of a wheel."""
    installed = PACKAGE / "_data"
    return installed if installed.is_dir() else PACKAGE.parent


def conf(name: str) -> Path:
    """Return a file of ``conf/``.

    :raises LocalError: when the installation lacks it
    """
    path = root() / "conf" / name
    if not path.is_file():
        raise LocalError(f"The file {path} is missing from the installation of ackstream: install the package again.")
    return path


def job(name: str) -> Path:
    """Return the script of a job, ``jobs/NAME.py``.

    :raises LocalError: when there is no such job; names those there are
    """
    path = root() / "jobs" / f"{name}.py"
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
