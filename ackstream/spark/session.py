"""The one way to a Spark session, for jobs, the demo and tests alike."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ackstream.local import installation
from ackstream.local.submit import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ackstream.settings import Settings


def session(
    settings: Settings, name: str, *, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build (or get) the process's Spark session.

    Under ``spark-submit``, it sets master, memory and conf; otherwise they come from the settings and from
    ``conf/spark-defaults.conf``.

    :param settings: the ``spark`` part is used; its ``conf`` wins over the file
    :param name: the application's name
    :param jars: JVM jars for a session started without ``spark-submit``; they must be known before the JVM starts
    :param conf: further entries, over everything else
    """
    # executors must run the interpreter in which the product is installed
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # the product's log levels; `ackstream submit` passes the same to the JVM that spark-submit starts
    os.environ.setdefault("LOG4J_CONFIGURATION_FILE", installation.conf("log4j2.properties").as_uri())
    entries: dict[str, str] = {}
    builder = SparkSession.builder.appName(name)
    # set by spark-submit
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(settings.spark.master)
        entries = {**defaults(), "spark.driver.memory": settings.spark.driver_memory}
        if settings.spark.master.startswith("local"):
            entries |= LOOPBACK
    if jars:
        entries["spark.jars"] = ",".join(map(str, jars))
    builder = builder.config(map={**entries, **settings.spark.conf, **(conf or {})})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def defaults() -> dict[str, str]:
    """Read ``conf/spark-defaults.conf``."""
    lines = installation.conf("spark-defaults.conf").read_text("utf-8").splitlines()
    entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {key: value.strip() for key, value in entries}
