"""The jobs that ``ackstream run`` runs in one session, by their names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ackstream.jobs.twin.job import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.spark.job import Job


def named(names: Iterable[str]) -> list[Job]:
    """Return jobs by their names; that of the twin is followed by its index."""
    found: list[Job] = []
    for name in names:
        found.append(import_module(f"ackstream.jobs.{name}.job").JOB)
        found += [INDEX] if name == "twin" else []
    return found
