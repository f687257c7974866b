"""The whole ``spark-submit`` line of a job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from ackstream.local import jars, java, places

if TYPE_CHECKING:
    from rich.console import Console

    from ackstream.settings import Settings

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def submit_command(settings: Settings, job: str, *arguments: str, console: Console | None = None) -> list[str]:
    """Return the command that runs ``jobs/JOB.py``; the jars are fetched first where they are missing.

    :param settings: the ``spark`` part is used; its ``conf`` wins over ``conf/spark-defaults.conf``
    :param job: the job's name, such as ``correlate``
    :param arguments: what the job gets
    :param console: where the progress of the download goes
    :raises LocalError: there is no such job, no Java, or a jar cannot be fetched
    """
    script = places.job(job)
    spark = settings.spark
    # the machine's name may not resolve, and its address may change while a laptop moves
    hosts = LOOPBACK if spark.master.startswith("local") else {}
    # of two entries with one key spark-submit takes the last
    entries = [*hosts.items(), *spark.conf.items()]
    return [
        str(jars.spark_home() / "bin" / "spark-submit"),
        *("--name", f"ackstream {job}"),
        *("--master", spark.master),
        *("--driver-memory", spark.driver_memory),
        *("--properties-file", str(places.conf("spark-defaults.conf"))),
        *("--jars", ",".join(map(str, jars.resolve("spark", console)))),
        *(text for key, value in entries for text in ("--conf", f"{key}={value}")),
        str(script),
        *arguments,
    ]


def submit_environment() -> dict[str, str]:
    """Return the environment for that command: this PySpark, this interpreter, the quiet log."""
    return {
        **os.environ,
        "SPARK_HOME": str(jars.spark_home()),
        # executors must run the interpreter that has the product installed
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "LOG4J_CONFIGURATION_FILE": places.conf("log4j2.properties").as_uri(),
    }


def run(command: list[str]) -> NoReturn:
    """Become that command: one process less to watch, and signals reach Spark itself.

    :raises LocalError: no Java, or the wrong one; said here because Spark says it with a stack trace
    """
    java.find()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, submit_environment())  # noqa: S606 - no shell is wanted
