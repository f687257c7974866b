"""The program of ``ackstream run``, jobs in one Spark session; Python looks for modules in its directory first."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module

from ackstream.jobs.twin.job import INDEX
from ackstream.local.submit import STANDBY
from ackstream.spark.job import Job, main


def named(names: Iterable[str]) -> list[Job]:
    """Return jobs by their names; the twin is followed by its index."""
    found: list[Job] = []
    for name in names:
        found.append(import_module(f"ackstream.jobs.{name}.job").JOB)
        found += [INDEX] if name == "twin" else []
    return found


if __name__ == "__main__":
    main(*named(name for name in sys.argv[1:] if name != STANDBY))
