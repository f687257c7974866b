"""A checkpoint remembers the settings it was made with; starting it with others is refused in plain words."""

from __future__ import annotations

import json
from contextlib import closing
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ackstream.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from ackstream.settings import Settings

NAME = "ackstream.json"


def values(settings: Settings, keys: Iterable[str]) -> dict[str, object]:
    """Return settings by their full keys, such as ``settle.shards``."""
    return {key: attrgetter(key)(settings) for key in keys}


def guard(spark: SparkSession, location: str, ours: Mapping[str, object], otherwise: str) -> None:
    """Compare the settings with those the checkpoint was made with; write them down on the first start.

    :param location: of the checkpoint
    :param ours: the settings that cannot change under it, by their full keys
    :param otherwise: what to do if one has to change, as the end of a sentence
    :raises StartError: if one differs
    """
    files, path = _file(spark, f"{location}/{NAME}")
    if files.exists(path):
        with closing(files.open(path)) as stream:
            theirs = json.loads(bytes(stream.readAllBytes()))
        compare(ours, theirs, location, otherwise)
        return
    # whole or not at all: a job may be killed at any moment
    _, draft = _file(spark, f"{location}/.{NAME}.draft")
    with closing(files.create(draft, True)) as out:  # noqa: FBT003 - overwrite, in Java's signature
        out.write(json.dumps(dict(ours)).encode())
    files.rename(draft, path)


def is_new(spark: SparkSession, location: str) -> bool:
    """Return whether no query has been started with a checkpoint yet."""
    files, path = _file(spark, f"{location}/{NAME}")
    return not files.exists(path)


def _file(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and path of a file of a checkpoint."""
    path = spark._jvm.org.apache.hadoop.fs.Path(name)  # noqa: SLF001 - there is no public way
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path  # noqa: SLF001


def compare(ours: Mapping[str, object], theirs: Mapping[str, object], location: str, otherwise: str) -> None:
    """Refuse values that differ from those of the checkpoint.

    :raises StartError: naming the first key, both values and the ways out
    """
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            raise StartError(
                f"The checkpoint {location} was made with {key} = {theirs[key]}, the settings say {value}. Set {key} "
                f"back to that, or {otherwise}."
            )
