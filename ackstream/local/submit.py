"""The complete ``spark-submit`` line of a job: its options, its entries of Spark, and the archive of its classes.

Java calls the archive application class-data sharing: with it, the JVM of a driver starts in half the processor time.
It is written once per Java and PySpark, by running a short Spark program that does the work of the jobs.
A JVM ignores an archive that does not fit, so a missing, stale or damaged one costs only time.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from ackstream.errors import InputError, LocalError, SettingsError
from ackstream.local import jars, machine
from ackstream.local.machine import java_text, locked, write_file
from ackstream.settings import Settings
from ackstream.settings.base import ENV_PREFIX
from ackstream.settings.jobs import Spark
from ackstream.settings.loading import DEFAULT_FILE, Local, settings_file

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""The address for a local master: the machine's name may not resolve, and a laptop's address may change."""

JAVA_OPTIONS, CLASS_PATH = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
LOCAL_TABLES, LOCAL_FILES, LOCAL_LOG = "ackstream.LocalTables", "ackstream.LocalFiles", "ackstream.LocalLog"
LOCAL_FILES_JAR = Path(__file__).with_name("local-files.jar")
"""Classes for Hadoop's two interfaces to files and for Delta's to the log of a table, and the jar with them."""

BASES = ("hadoop-bare-naked-local-fs-", "delta-storage-", "unitycatalog-client-", "unitycatalog-hadoop-")
"""The jars with their base classes, and with those that ``delta-storage`` uses for a Unity Catalog."""

MERGED = "spark.ackstream.merged"
"""An entry that marks a driver that was started with all entries of its settings."""

_DRIVERS_ENVIRONMENT = ("yarn.appMasterEnv", "kubernetes.driverEnv")
"""Entries by which a driver in a cluster gets variables of the environment."""

_WORDS = "secret|pass(?:word|wd|phrase)|token|access[.]?key|account[.]key|credential|jaas"
SECRET = re.compile(f"(?i){_WORDS}")
"""The keys whose values are never shown, the same as in ``spark.redaction.regex`` of ``conf/spark-defaults.conf``."""

STANDBY = "--standby"
"""The argument of a program that waits while another process runs its job."""

MASKED = "**********"
"""Printed in place of the values in ``[spark.conf]``: no key shows for certain that its value is not a secret."""

_SECRET_OPTION = re.compile(rf"(?i)([^\s=]*(?:{_WORDS})[^\s=]*)=")
_PLAIN = re.compile(r"[A-Za-z0-9_./,;@+*\[\](){}<>|?$%&^~'\"-]")

# Java's warnings about an archive that does not fit are of no interest to the user
QUIET = "-Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"

COLLECTOR, OTHER_COLLECTOR = "-XX:+UseParallelGC", re.compile(r"-XX:\+Use(?!Parallel)\w+GC\b")
QUICK_START = f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m {COLLECTOR}"
"""Options for a JVM that lives for minutes, which would never regain the time spent on optimising its code. The code of
four queries exceeds the default of 48 MB, at which the compiler would stop. The parallel collector takes a fifth less
processor time than the default one, whose pauses are shorter."""

ARCHIVE_SECONDS = 300
"""Maximum time of the program that writes the archive, on the slowest machine."""


def submit_command(
    settings: Settings,
    job: str,
    *arguments: str,
    script: Path | None = None,
    deploy_mode: str = "client",
    console: Console | None = None,
) -> list[str]:
    """Return the command that runs a job; missing jars are fetched first.

    All users of the machine can read it, so the entries of Spark are in a file that only its owner can read. They
    override those of the user's own ``spark-defaults.conf``, which Spark reads as well.

    :param script: the program; ``None``: ``jobs/JOB.py``
    :raises AckstreamError: there is no such job, no Java or jar, or master, mode and settings do not fit
    """
    script, master = script or machine.entry_point(job), settings.spark.master
    remote = deploy_mode == "cluster"
    if remote and is_local(master):
        raise InputError(f"The master {master} is this machine, so the driver cannot run in a cluster: add --master.")
    if remote and master.startswith("spark://"):
        raise InputError(
            f"Spark's own cluster {master} runs no drivers in Python: leave out --deploy-mode cluster, and keep the "
            "driver running with a supervisor."
        )
    file = check_settings(master, remote=remote)
    fetched = jars.resolve("spark", console)
    known = {MERGED: "true", "spark.driver.memory": settings.spark.driver_memory}
    found = {**defaults(), **known, **own_entries(settings, fetched)}
    if is_local(master) and (options := f"{java_options()} {found.get(JAVA_OPTIONS, '')}".strip()):
        found[JAVA_OPTIONS] = options
    if not remote:
        # else it would be that of the workers, if the settings name theirs
        found.setdefault("spark.pyspark.driver.python", sys.executable)
    if remote and file is not None:
        # where the driver finds it: YARN and Kubernetes put it into its working directory
        found |= {f"spark.{part}.{ENV_PREFIX}CONF": file.name for part in _DRIVERS_ENVIRONMENT}
    # options would override these entries
    further = {name: list(filter(None, found.pop(f"spark.{name}", "").split(","))) for name in ("jars", "files")}
    files = [str(file.absolute()), *further["files"]] if remote and file is not None else further["files"]
    properties = settings.local.data.absolute() / "submit" / f"{job}.properties"
    write_properties(properties, found)
    return [
        str(machine.spark_home() / "bin" / "spark-submit"),
        *("--name", f"ackstream {job}"),
        *("--master", master),
        *("--deploy-mode", deploy_mode),
        *("--properties-file", str(properties)),
        "--load-spark-defaults",
        *("--jars", ",".join([*map(str, fetched), *further["jars"]])),
        *(("--files", ",".join(files)) if files else ()),
        str(script),
        *arguments,
    ]


def is_local(master: str) -> bool:
    """Return whether a master is a JVM of this machine, ``local[…]``, and not a cluster."""
    return master.startswith("local")


def check_settings(master: str, *, remote: bool = False) -> Path | None:
    """Return the settings file that a job on a master uses, if any; a ``remote`` driver does not have this environment.

    :raises SettingsError: a job on a cluster would silently run with the defaults of a laptop
    """
    file = settings_file()
    if file is None and not is_local(master) and (remote or not os.environ.get(f"{ENV_PREFIX}KAFKA_BOOTSTRAP")):
        raise SettingsError(
            f"The master is {master}, and there are no settings for a cluster: the job would use the defaults, such as "
            f"Kafka at localhost:9092. Name a file with --settings or ACKSTREAM_CONF, or write {DEFAULT_FILE} here."
        )
    return file


def own_entries(settings: Settings, fetched: Sequence[Path] = ()) -> dict[str, str]:
    """Return the entries of Spark that the settings make, with the jars of a session; refuse a secret for a JVM."""
    conf = settings.spark.conf
    for key, value in conf.items():
        if key.lower().endswith("javaoptions") and (found := _SECRET_OPTION.search(value)):
            raise SettingsError(
                f"The setting spark.conf.{key} has a value for {found[1]}, which everyone on the machine could read in "
                f"the list of processes: put it into a file that the program reads, or into [kafka.security]."
            )
    if not is_local(settings.spark.master):
        return dict(conf)
    files, bases = {}, [str(jar) for jar in fetched if jar.name.startswith(BASES)]
    # executors of their own have no such jar when they start; too few: Spark loads these classes before it adds the
    # jars of ``--jars``
    if re.match(r"local(?:\[|$)", settings.spark.master) and len(bases) >= len(BASES):
        # these replace Hadoop's access to local files, which starts processes for each file
        files = {
            CLASS_PATH: os.pathsep.join(filter(None, [*bases, str(LOCAL_FILES_JAR), conf.get(CLASS_PATH)])),
            "spark.delta.logStore.file.impl": LOCAL_LOG,
            "spark.hadoop.fs.file.impl": LOCAL_TABLES,
            "spark.hadoop.fs.AbstractFileSystem.file.impl": LOCAL_FILES,
        }
    # as Hadoop reads a path: characters that a URI would escape stand for themselves
    pools = f"file:{machine.conf('pools.xml')}"
    fair = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": pools}
    return {**defaults("spark-local.conf"), **LOOPBACK, **fair, **conf, **files}


def defaults(name: str = "spark-defaults.conf") -> dict[str, str]:
    """Read the entries of a file in ``conf/``."""
    lines = machine.conf(name).read_text("utf-8").splitlines()
    entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {key: value.strip() for key, value in entries}


def write_properties(path: Path, entries: Mapping[str, str]) -> None:
    """Write entries for ``spark-submit --properties-file``, which only the owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["=".join(java_text(part, _PLAIN) for part in entry) + "\n" for entry in entries.items()]
        write_file(path, "".join(lines).encode())
    except OSError as error:
        raise LocalError(
            f"The file {path} cannot be written ({error.strerror}): set local.data (ACKSTREAM_LOCAL_DATA) to another "
            f"directory."
        ) from None


def log_configuration(log_format: str) -> str:
    """Return the files of Log4j by which the JVM logs only warnings and errors, in a format of ``log.format``."""
    names = ["log4j2.properties", *(["log4j2-json.properties"] if log_format == "json" else [])]
    return ",".join(machine.conf(name).as_uri() for name in names)


def submit_environment(master: str = "local", deploy_mode: str = "client", log_format: str = "text") -> dict[str, str]:
    """Return the environment of ``spark-submit``: Spark, and on this machine the interpreter and the quiet log."""
    found = {**os.environ, "SPARK_HOME": str(machine.spark_home())}
    # of a cluster ``PYSPARK_PYTHON`` is respected; without it, workers run the cluster's
    if deploy_mode == "client":
        found["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(master):
        own = {"LOG4J_CONFIGURATION_FILE": log_configuration(log_format), "OWN_JAVA_HOME": found.get("JAVA_HOME", "")}
        found = {**own, **found, "JAVA_HOME": str(machine.conf("java/bin/java").parents[1])}
    return {**found, **local_variables(master)}


def local_variables(master: str) -> dict[str, str]:
    """Return the variables that a Spark needs whose master is this machine."""
    if not is_local(master):
        return {}
    # the one Python that certainly has the product; Spark looks up the address before it reads its own settings
    found = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"}
    # Java would support only ASCII in file names
    return found | ({"LC_ALL": "C.UTF-8"} if os.environ.get("LC_ALL") in ("C", "POSIX") else {})


def run(command: list[str], environment: dict[str, str], options: str = "") -> NoReturn:
    """Replace this process by that command: one process fewer to watch, and signals reach Spark itself.

    :param options: the settings' own options of the JVM
    """
    # Spark would report these by a stack trace
    machine.check_surroundings(options)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, {**os.environ, **environment})  # noqa: S606 - no shell is wanted


def java_options() -> str:
    """Return the options that let a Spark driver use the archive; an empty text without one."""
    with suppress(LocalError):
        if (found := archive()).is_file():
            return f"-XX:SharedArchiveFile={found} {QUIET}"
    return ""


def quick_start(given: str = "") -> str:
    """Return the options of a driver that lives for minutes, with those of the settings, ``given``."""
    # of two collectors Java would use none
    own = QUICK_START.replace(COLLECTOR, "") if OTHER_COLLECTOR.search(machine.all_options(given)) else QUICK_START
    return f"{own} {java_options()} {given}".strip()


def archive() -> Path:
    """Name the archive of classes of exactly this Java and these jars."""
    program = machine.find_java().program.resolve()
    parts = [str(program)]
    # a JVM compares the paths, sizes and times of all jars of its class path
    own = [jar for jar in jars.present("spark") if jar.name.startswith(BASES)]
    spark = sorted(machine.spark_home().glob("jars/*.jar"))
    for file in (program.parent.parent / "lib" / "modules", *own, LOCAL_FILES_JAR, *spark):
        if file.is_file():
            status = file.stat()
            parts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return machine.cache() / "class-data" / f"spark-{digest}.jsa"


def archive_classes() -> bool:
    """Write the archive (40 s, 200 MB of the user's cache) unless it exists; return whether the Java has one."""
    found = archive()
    if found.is_file():
        return True
    lock = locked(found.parent / "lock", "set XDG_CACHE_HOME to another directory", lambda: None)
    with lock, tempfile.TemporaryDirectory(dir=found.parent) as directory:
        if found.is_file():
            return True
        part = Path(directory) / found.name
        conf = {
            JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={part} {QUIET}",
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        settings = Settings(spark=Spark(driver_memory="1g", conf=conf), local=Local(data=Path(directory)))
        script = machine.installation_root() / "jobs" / "class_data" / "__main__.py"
        command = submit_command(settings, "class-data", directory, script=script)
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - PySpark's own program, no shell
                command, env=submit_environment(), capture_output=True, timeout=ARCHIVE_SECONDS, check=False
            )
        if part.is_file():
            part.replace(found)
    return found.is_file()
