"""The whole ``spark-submit`` line of a job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from ackstream.local import installation, jars, java

if TYPE_CHECKING:
    from rich.console import Console

    from ackstream.settings import Settings

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a local master: the machine's name may not resolve, and a laptop's address may change while it moves."""


def submit_command(settings: Settings, job: str, *arguments: str, console: Console | None = None) -> list[str]:
    """Return the command that runs ``jobs/JOB.py``; missing jars are fetched first.

    :param settings: the ``spark`` part is used; its ``conf`` wins over ``conf/spark-defaults.conf``
    :param job: the job's name, such as ``correlate``
    :param arguments: passed to the job
    :param console: shows the progress of the download
    :raises LocalError: there is no such job, no Java, or a jar cannot be fetched
    """
    script = installation.entry_point(job)
    spark = settings.spark
    hosts = LOOPBACK if spark.master.startswith("local") else {}
    # of two entries with one key spark-submit takes the last
    entries = [*hosts.items(), *spark.conf.items()]
    return [
        str(installation.spark_home() / "bin" / "spark-submit"),
        *("--name", f"ackstream {job}"),
        *("--master", spark.master),
        *("--driver-memory", spark.driver_memory),
        *("--properties-file", str(installation.conf("spark-defaults.conf"))),
        *("--jars", ",".join(map(str, jars.resolve("spark", console)))),
        *(text for key, value in entries for text in ("--conf", f"{key}={value}")),
        str(script),
        *arguments,
    ]


def submit_environment() -> dict[str, str]:
    """Return the environment for that command: this PySpark, this interpreter, the quiet log."""
    return {
        **os.environ,
        "SPARK_HOME": str(installation.spark_home()),
        # executors must run the interpreter that has the product installed
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "LOG4J_CONFIGURATION_FILE": installation.conf("log4j2.properties").as_uri(),
    }


def run(command: list[str]) -> NoReturn:
    """Replace this process by that command: one process fewer to watch, and signals reach Spark itself.

    :raises LocalError: no Java, or the wrong one; Spark would report it by a stack trace
    """
    java.find()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, submit_environment())  # noqa: S606 - no shell is wanted
