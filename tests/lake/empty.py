"""Tables as a job creates them: made once in a run of tests, and copied."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import threading
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.lake import tables
from ackstream.lake.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

as_a_job_does = tables.create
"""The product's own function, which tests replace by :func:`create_copied`."""

_copying = threading.Lock()


@cache
def _directory() -> Path:
    found = Path(tempfile.mkdtemp(prefix="ackstream-tables-"))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def create(spark: SparkSession, lake: Lake, names: Iterable[str] = TABLES) -> None:
    """Put empty tables into a lake, unless it has them."""
    place = _directory() / f"{lake.retention}-{lake.checkpoint_interval}"
    first = lake.model_copy(update={"path": str(place)})
    with _copying:
        for name in names:
            made, wanted = Path(first.table(name)), Path(lake.table(name))
            if wanted.exists():
                continue
            if not made.exists():
                as_a_job_does(spark, first, [name])
            _copy(made, wanted)


def _copy(table: Path, place: Path) -> None:
    """Copy a table, with an id of its own, so that nobody sees a part of it."""
    own = str(uuid.uuid4())
    made = place.with_name(f".{place.name}-{own}")
    shutil.copytree(table, made)
    commit = made / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
    (identity,) = [action["metaData"]["id"] for action in actions if "metaData" in action]
    for path in (commit, commit.with_suffix(".crc")):
        path.write_text(path.read_text("utf-8").replace(identity, own), "utf-8")
    made.rename(place)


def create_copied(spark: SparkSession, lake: Lake, names: Iterable[str] = TABLES) -> None:
    """Create tables as a job does at its start, after copies of those that a local lake lacks are there."""
    names = list(names)
    if lake.path.startswith("/"):
        create(spark, lake, names)
    as_a_job_does(spark, lake, names)
