"""The whole ``spark-submit`` line of a job, and the archive of the classes that every Spark driver loads.

With the archive (Java calls it application class-data sharing) a driver's JVM starts in half the processor time.
:func:`archive_classes` writes it once per Java and PySpark, by running this module as a short Spark program that does
what the jobs do. A JVM ignores an archive that does not fit, so a missing, stale or damaged one costs time and nothing
else.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ackstream.errors import LocalError, SettingsError
from ackstream.local import installation, jars
from ackstream.local.process import write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from ackstream.settings import Settings


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a local master: the machine's name may not resolve, and a laptop's address may change while it moves."""

ARCHIVE_SECONDS = 300
"""How long the program that writes the archive of classes may take on the slowest machine."""


JAVA_OPTIONS, CLASS_PATH = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
FILE_SYSTEM = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
FILE_SYSTEM_JAR = "hadoop-bare-naked-local-fs-"

_WORDS = "secret|pass(?:word|wd|phrase)|token|access[.]?key|account[.]key|credential|jaas"
SECRET = re.compile(f"(?i){_WORDS}")
"""The keys whose values are never shown, the same as in ``spark.redaction.regex`` of ``conf/spark-defaults.conf``."""

MASKED = "**********"
"""What is shown of the values in ``[spark.conf]``, of which no key tells for certain that it is no secret."""

_SECRET_OPTION = re.compile(rf"(?i)([^\s=]*(?:{_WORDS})[^\s=]*)=")
_PLAIN = re.compile(r"[A-Za-z0-9_./,;@+*\[\](){}<>|?$%&^~'\"-]")

# an archive that does not fit is no news for the user
_QUIET = "-Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"
_STREAM_SECONDS = 120


def submit_command(settings: Settings, job: str, *arguments: str, console: Console | None = None) -> list[str]:
    """Return the command that runs ``jobs/JOB.py``; missing jars are fetched first.

    Everyone on the machine can read it, so the entries of Spark are in a file that its owner alone can read.

    :param settings: the ``spark`` part is used; its ``conf`` wins over ``conf/spark-defaults.conf``
    :raises LocalError: there is no such job, no Java, or a jar cannot be fetched
    :raises SettingsError: a secret would be in the command line of the JVM
    """
    script = installation.entry_point(job)
    fetched = jars.resolve("spark", console)
    found = {**defaults(), **own_entries(settings, fetched)}
    if options := f"{java_options()} {found.get(JAVA_OPTIONS, '')}".strip():
        found[JAVA_OPTIONS] = options
    properties = settings.local.data.absolute() / "submit" / f"{job}.properties"
    write_properties(properties, found)
    return [
        str(installation.spark_home() / "bin" / "spark-submit"),
        *("--name", f"ackstream {job}"),
        *("--master", settings.spark.master),
        *("--driver-memory", settings.spark.driver_memory),
        *("--properties-file", str(properties)),
        *("--jars", ",".join(map(str, fetched))),
        str(script),
        *arguments,
    ]


def own_entries(settings: Settings, fetched: Sequence[Path] = ()) -> dict[str, str]:
    """Return the entries of Spark that the settings make.

    :param fetched: the jars that the session gets
    :raises SettingsError: a secret would be in the command line of a JVM
    """
    conf = settings.spark.conf
    for key, value in conf.items():
        if key.lower().endswith("javaoptions") and (found := _SECRET_OPTION.search(value)):
            raise SettingsError(
                f"The setting spark.conf.{key} has a value for {found[1]}, which everyone on the machine could read in "
                f"the list of processes: put it into a file that the program reads, or into [kafka.security]."
            )
    if not settings.spark.master.startswith("local"):
        return dict(conf)
    # executors of their own have no such jar when they start
    files = local_files(fetched) if re.match(r"local(?:\[|$)", settings.spark.master) else {}
    if files and CLASS_PATH in conf:
        files[CLASS_PATH] += f"{os.pathsep}{conf[CLASS_PATH]}"
    # as Hadoop reads a path: what a URI would escape stands for itself
    pools = f"file:{installation.conf('pools.xml')}"
    fair = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": pools}
    return {**LOOPBACK, **fair, **conf, **files}


def local_files(fetched: Sequence[Path]) -> dict[str, str]:
    """Return the entries by which Java itself sets the permissions of local files; Hadoop starts a process for each.

    Spark asks for the class before it adds the jars of ``--jars``.
    """
    found = next((str(jar) for jar in fetched if jar.name.startswith(FILE_SYSTEM_JAR)), None)
    return {} if found is None else {CLASS_PATH: found, "spark.hadoop.fs.file.impl": FILE_SYSTEM}


def defaults() -> dict[str, str]:
    """Read ``conf/spark-defaults.conf``."""
    lines = installation.conf("spark-defaults.conf").read_text("utf-8").splitlines()
    entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {key: value.strip() for key, value in entries}


def write_properties(path: Path, entries: Mapping[str, str]) -> None:
    """Write entries for ``spark-submit --properties-file``, which only the owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in entries.items()).encode())
    except OSError as error:
        raise LocalError(
            f"The file {path} cannot be written ({error.strerror}): set local.data (ACKSTREAM_LOCAL_DATA) to another "
            f"directory."
        ) from None


def _escaped(text: str) -> str:
    """Escape a key or a value as Java reads it."""
    code = text.encode("utf-16-be", "surrogatepass").hex()
    units = (code[place : place + 4] for place in range(0, len(code), 4))
    return "".join(chr(int(unit, 16)) if _PLAIN.match(chr(int(unit, 16))) else f"\\u{unit}" for unit in units)


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
    installation.find_java()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, submit_environment())  # noqa: S606 - no shell is wanted


def archive_classes() -> bool:
    """Write the archive unless it exists: 40 seconds, and 200 MB of the user's cache.

    :returns: whether there is an archive now; a Java without class-data sharing has none
    :raises LocalError: no Java, or a jar cannot be fetched
    """
    found = archive()
    if found.is_file():
        return True
    found.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=found.parent) as directory:
        part, fetched = Path(directory) / found.name, jars.resolve("spark")
        conf = {
            **LOOPBACK,
            **local_files(fetched),
            JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={part} {_QUIET}",
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        command = [
            str(installation.spark_home() / "bin" / "spark-submit"),
            *("--master", "local[2]", "--driver-memory", "1g"),
            *("--properties-file", str(installation.conf("spark-defaults.conf"))),
            *("--jars", ",".join(map(str, fetched))),
            *(text for key, value in conf.items() for text in ("--conf", f"{key}={value}")),
            __file__,
            directory,
        ]
        try:
            subprocess.run(  # noqa: S603 - PySpark's own program, no shell
                command, env=submit_environment(), capture_output=True, timeout=ARCHIVE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if part.is_file():
            # another process may have been as quick: both archives are good
            part.replace(found)
    return found.is_file()


def java_options() -> str:
    """Return the options that let a Spark driver use the archive; an empty text where there is none."""
    try:
        found = archive()
    except LocalError:
        return ""
    return f"-XX:SharedArchiveFile={found} {_QUIET}" if found.is_file() else ""


def archive() -> Path:
    """Name the archive of this very Java and these very jars.

    :raises LocalError: no Java, or no PySpark
    """
    program = installation.find_java().program.resolve()
    parts = [str(program)]
    # a JVM compares the paths, sizes and times of all jars of its class path
    own = [jar for jar in jars.present("spark") if jar.name.startswith(FILE_SYSTEM_JAR)]
    spark = sorted(installation.spark_home().glob("jars/*.jar"))
    for file in (program.parent.parent / "lib" / "modules", *own, *spark):
        if file.is_file():
            status = file.stat()
            parts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return installation.cache() / "class-data" / f"spark-{digest}.jsa"


def _exercise(directory: str) -> None:
    """Run what the jobs run: a table, and a stream with state in Python that writes a batch per trigger."""
    import pandas as pd  # noqa: PLC0415 - this function is a program of its own
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.streaming.state import GroupStateTimeout  # noqa: PLC0415

    spark = SparkSession.builder.getOrCreate()
    table = f"{directory}/table"
    schema = "id INT, text STRING"

    def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        seen = (state.get[0] if state.exists else 0) + sum(len(found) for found in frames)
        state.update((seen,))
        yield pd.DataFrame({"id": [key[0]], "text": [str(seen)]})

    def write(batch: Any, number: int) -> None:
        batch.write.format("delta").option("txnAppId", "t").option("txnVersion", number).mode("append").save(table)

    spark.createDataFrame([(1, "a"), (2, "b")], schema).write.format("delta").save(table)
    groups = spark.readStream.format("delta").load(table).groupBy("id")
    counted = groups.applyInPandasWithState(count, schema, "n INT", "append", GroupStateTimeout.NoTimeout)
    query = counted.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination(_STREAM_SECONDS)
    spark.read.format("delta").load(table).groupBy("text").count().orderBy("text").collect()
    spark.stop()


if __name__ == "__main__":
    _exercise(sys.argv[1])
