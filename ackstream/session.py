"""The one way to a Spark session, for jobs, demo and tests alike."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ackstream.settings import Settings

# Measured on two cores; each of these defaults costs more than the product's whole logic. The same keys stand in
# conf/spark-defaults.conf for spark-submit, where what is set there wins.
TUNING: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # a local Delta commit falls from 4 to 17 s to about 1 s
    "spark.databricks.delta.snapshotPartitions": "1",
    # the next tick does the work of the empty batch
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # 0.07 s a batch less than a TCP socket to the Python worker
    "spark.python.unix.domain.socket.enabled": "true",
}


def session(
    settings: Settings, name: str, *, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build (or get) the process's Spark session.

    :param settings: the ``spark`` part is used: master, driver memory and free ``conf`` entries, which win
    :param name: the application's name
    :param jars: JVM jars for a session started without ``spark-submit``; they must be known before the JVM starts
    :param conf: further entries, over everything else
    """
    # executors must run the interpreter that has the product installed
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name)
    if not _submitted():
        builder = builder.master(settings.spark.master).config("spark.driver.memory", settings.spark.driver_memory)
        for key, value in TUNING.items():
            builder = builder.config(key, value)
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for key, value in {**settings.spark.conf, **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _submitted() -> bool:
    """Tell whether ``spark-submit`` started this process; it then has master, memory and conf already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
