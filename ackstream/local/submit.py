"""The whole ``spark-submit`` line of a job."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ackstream.local import class_data, installation, jars, java

if TYPE_CHECKING:
    from rich.console import Console

    from ackstream.settings import Settings

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a local master: the machine's name may not resolve, and a laptop's address may change while it moves."""

ARCHIVE_SECONDS = 300
"""How long the program that writes the archive of classes may take on the slowest machine."""


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
    if java_options := f"{class_data.java_options()} {spark.conf.get(class_data.JAVA_OPTIONS, '')}".strip():
        entries.append((class_data.JAVA_OPTIONS, java_options))
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


def archive_classes() -> bool:
    """Write the archive of ``class_data`` unless it exists: 40 seconds, and 200 MB of the user's cache.

    :returns: whether there is an archive now; a Java without class-data sharing has none
    :raises LocalError: no Java, or a jar cannot be fetched
    """
    archive = class_data.archive()
    if archive.is_file():
        return True
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        part = Path(directory) / archive.name
        conf = {
            **LOOPBACK,
            class_data.JAVA_OPTIONS: class_data.writing(part),
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        command = [
            str(installation.spark_home() / "bin" / "spark-submit"),
            *("--master", "local[2]", "--driver-memory", "1g"),
            *("--properties-file", str(installation.conf("spark-defaults.conf"))),
            *("--jars", ",".join(map(str, jars.resolve("spark")))),
            *(text for key, value in conf.items() for text in ("--conf", f"{key}={value}")),
            *(class_data.__file__, directory),
        ]
        try:
            subprocess.run(  # noqa: S603 - PySpark's own program, no shell
                command, env=submit_environment(), capture_output=True, timeout=ARCHIVE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if part.is_file():
            # another process may have been as quick: both archives are good
            part.replace(archive)
    return archive.is_file()
