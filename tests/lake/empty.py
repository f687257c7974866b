"""Tables as a job creates them: made once in a run of tests, and copied."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.lake import tables
from ackstream.lake.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake


@cache
def _directory() -> Path:
    found = Path(tempfile.mkdtemp(prefix="ackstream-tables-"))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def create(spark: SparkSession, lake: Lake, names: Iterable[str] = TABLES) -> None:
    """Put empty tables into a lake, unless it has them; the copies of a table have its id."""
    place = _directory() / f"{lake.retention}-{lake.checkpoint_interval}"
    first = lake.model_copy(update={"path": str(place)})
    for name in names:
        if not Path(first.table(name)).exists():
            tables.create(spark, first, [name])
        if not Path(lake.table(name)).exists():
            shutil.copytree(first.table(name), lake.table(name))
