"""The JVM jars of ``conf/ivy.xml``, fetched once for a user by PySpark's Ivy, if their hash is in ``jars.sha256``."""

import hashlib
import os
import re
import subprocess
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from xml.etree import ElementTree as ET

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ackstream.errors import LocalError
from ackstream.local import machine
from ackstream.local.machine import locked, write_file

ATTEMPTS = 3
PINS = "jars.sha256"
"""The file beside ``ivy.xml`` with the SHA-256 of each jar, in the form of ``sha256sum`` for paths within the cache."""

_FOUND = re.compile(r"^\tfound (\S+) in ")
_FETCHED = re.compile(r"^\t\[SUCCESSFUL \] (\S+)!")
# Ivy's summary of failures: `:: org#name;1.0: not found` or `:: org#name;1.0!name.jar`; and its reasons
_FAILED = re.compile(r"^\s+:: ([^\s:]+#[^\s:]+)", re.MULTILINE)
_REASON = re.compile(r"^\s+(?:\[FAILED +\] \S+: (.+) \(\d+ms\)|Server access error at url \S+ \((.+)\))$", re.MULTILINE)


def resolve(configuration: str, console: Console | None = None, module: Path | None = None) -> list[Path]:
    """Return the jars of a configuration; fetch those that the user's cache lacks. LocalError has the remedy.

    The SHA-256 of each is compared with ``jars.sha256``; later calls only read a listing and compare sizes and times,
    without a JVM. A file lock makes processes take turns. A truncated jar (an interrupted download, a full disk) and
    one that is another file are removed and fetched again.

    :param configuration: ``spark`` (the jars of a Spark job, without Spark's own) or ``broker`` (the one-node Kafka)
    :param module: an Ivy file with other configurations; ``None`` for ``conf/ivy.xml``
    """
    module = module or machine.conf("ivy.xml")
    if jars := present(configuration, module):
        return jars
    console = console or Console(quiet=True)
    waiting = "Another process is fetching the jars; waiting for it."
    listing = _listing(configuration, module)
    cache = listing.parent
    with locked(cache / "lock", "set XDG_CACHE_HOME", lambda: console.print(waiting)):
        # another process may have fetched them while this one waited
        jars = present(configuration, module)
        if not jars:
            jars = _verified(lambda: _fetch(cache, module, configuration, console), cache, module)
            write_file(listing, msgspec.json.encode([_entry(jar, cache) for jar in jars]))
    return jars


def present(configuration: str, module: Path | None = None) -> list[Path]:
    """Return the jars of a configuration without fetching; an empty list if one is missing or has changed."""
    listing = _listing(configuration, module or machine.conf("ivy.xml"))
    try:
        entries = msgspec.json.decode(listing.read_bytes(), type=list[dict[str, Any]])
        jars = [listing.parent / entry["path"] for entry in entries]
        return jars if [_entry(jar, listing.parent) for jar in jars] == entries else []
    except (OSError, KeyError, msgspec.DecodeError):
        return []


def _entry(jar: Path, cache: Path) -> dict[str, Any]:
    """Return the entry of a verified jar; a file of another size or time is verified again."""
    status = jar.stat()
    return {"path": str(jar.relative_to(cache)), "size": status.st_size, "modified": status.st_mtime_ns}


def _listing(configuration: str, module: Path) -> Path:
    """Return the listing for the content of the two files: checkouts with other versions share the cache."""
    pins = module.with_name(PINS)
    content = module.read_bytes() + (pins.read_bytes() if pins.is_file() else b"")
    digest = hashlib.sha256(content).hexdigest()[:16]
    return machine.cache() / "ivy" / f"listing-{configuration}-{digest}.json"


def _verified(fetched: Callable[[], list[Path]], cache: Path, module: Path) -> list[Path]:
    """Return the fetched jars once all have the listed hash; remove a wrong jar, and fetch it once more."""
    pins, wrong = _pins(module), list[Path]()
    for _ in range(2):
        jars = {str(jar.relative_to(cache)): jar for jar in fetched()}
        if unknown := [name for name in jars if name not in pins]:
            raise LocalError(
                f"The jar {unknown[0]} is not in {module.with_name(PINS)}: restore that file and {module.name}; after "
                f"a change of versions, `make pins` writes it anew."
            )
        wrong = [jar for name, jar in jars.items() if pins[name] != hashlib.sha256(jar.read_bytes()).hexdigest()]
        if not wrong:
            return list(jars.values())
        for jar in wrong:
            jar.unlink(missing_ok=True)
    raise LocalError(
        f"The jar {wrong[0].name} that was fetched is not the one whose SHA-256 is in {module.with_name(PINS)}, and "
        "was removed: do not use the server it came from. Without a mirror in ~/.m2/settings.xml it is Maven Central."
    )


def _pins(module: Path) -> dict[str, str]:
    path = module.with_name(PINS)
    try:
        lines = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
        return {name: digest for digest, name in lines}
    except (OSError, ValueError):
        raise LocalError(
            f"The list {path} of the SHA-256 of jars is missing or damaged: install ackstream again."
        ) from None


def _fetch(cache: Path, module: Path, configuration: str, console: Console) -> list[Path]:
    class_path = cache / f"class-path-{configuration}.txt"
    settings = machine.conf("ivysettings.xml")
    command: list[str | Path] = [
        machine.find_java().program, "-Xmx256m", f"-Dackstream.cache={cache}", *java_options(), "-jar", _ivy_jar(),
        "-settings", settings, "-ivy", module, "-confs", configuration,
        "-types", "jar", "bundle", "-cachepath", class_path,
    ]  # fmt: skip
    problem = ""
    for _ in range(ATTEMPTS):
        # downloaded jars stay in the cache: every attempt continues where the last one ended
        problem = _run_ivy(command, configuration, console)
        if problem:
            continue
        jars = [Path(path) for path in class_path.read_text("utf-8").strip().split(":")]
        broken = [jar for jar in jars if not zipfile.is_zipfile(jar)]
        if not broken:
            return jars
        for jar in broken:
            jar.unlink(missing_ok=True)
        problem = f"{broken[0].name} is incomplete"
    raise LocalError(
        f"The {configuration} jars could not be fetched after {ATTEMPTS} attempts ({problem}): check the network, or "
        f"name a mirror of Maven Central in ~/.m2/settings.xml, and run `ackstream jars` again, which continues "
        f"where it stopped; if that does not help, delete {cache}."
    )


def _run_ivy(command: Sequence[str | Path], configuration: str, console: Console) -> str:
    """Run Ivy and show its progress; return a description of its failure, or an empty text."""
    lines = deque[str](maxlen=1000)
    text = TextColumn("{task.description}", markup=False)
    with (
        Progress(SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), console=console) as progress,
        subprocess.Popen(  # noqa: S603 - the Ivy jar of PySpark, no shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        task = progress.add_task(f"{configuration} jars: finding", total=None)
        found = 0
        for line in process.stdout or ():
            lines.append(line)
            if _FOUND.match(line):
                found += 1
                progress.update(task, total=found)
            elif match := _FETCHED.match(line):
                progress.update(task, advance=1, description=f"{configuration} jars: {match[1].rpartition('#')[2]}")
        if process.wait() == 0:
            progress.update(task, completed=found, description=f"{configuration} jars: ready")
            return ""
    printed = "".join(lines)
    failed, reason = _FAILED.search(printed), _REASON.search(printed)
    if not failed:
        return f"Ivy printed: {printed.strip().rpartition(chr(10))[2] or 'nothing'}"
    why = f": {reason[1] or reason[2]}" if reason else ""
    return f"{failed[1]} could not be downloaded{why}"


def _ivy_jar() -> Path:
    home = machine.spark_home()
    found = sorted(home.glob("jars/ivy-*.jar"))
    if not found:
        raise LocalError(f"There is no Ivy jar in {home / 'jars'}: install PySpark again.")
    return found[-1]


def java_options() -> list[str]:
    """Return the ``-D`` options for Java and ``conf/ivysettings.xml`` that name the Maven mirror and the proxy."""
    options = list(_proxy())
    if root := _mirror_of_central(Path(os.path.expanduser("~/.m2/settings.xml"))):  # noqa: PTH111 - no error without a home
        options += ["-Dackstream.resolver=mirror", f"-Dackstream.mirror={root}"]
    return options


def _proxy() -> Iterator[str]:
    """Yield the proxy variables of the environment as Java options: Java does not read them itself."""
    proxies = getproxies_environment()
    for scheme in ("http", "https"):
        if text := proxies.get(scheme):
            url = urlsplit(text if "//" in text else f"//{text}")
            yield f"-D{scheme}.proxyHost={url.hostname}"
            yield f"-D{scheme}.proxyPort={url.port or 80}"
    if direct := proxies.get("no"):
        hosts = [host.strip() for host in direct.split(",") if host.strip()]
        yield "-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host.startswith(".") else host for host in hosts)


def _mirror_of_central(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        document = ET.parse(path).getroot()  # noqa: S314 - the user's own Maven settings
    except ET.ParseError as error:
        raise LocalError(f"Maven's settings {path} are not XML ({error}): correct the file.") from None
    for mirror in document.iterfind(".//{*}mirror"):
        blocked, names, url = (mirror.findtext(f"{{*}}{name}", "").strip() for name in ("blocked", "mirrorOf", "url"))
        # Maven's list of patterns: names, ``*``, ``external:*``, and exclusions with ``!``
        patterns = {pattern.strip() for pattern in names.split(",")}
        if blocked != "true" and "!central" not in patterns and patterns & {"central", "*", "external:*"}:
            return _checked(url, path) if url else None
    return None


def _checked(url: str, path: Path) -> str:
    """Return the address of a mirror that is reached securely, and holds no secret: `ps` shows it to all users."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "file"):
        raise LocalError(
            f"Maven's settings {path} name a mirror of Central that is reached by {parts.scheme or 'no scheme'}: "
            f"its files could be changed on the way. Name its https address."
        )
    if parts.username or parts.password:
        raise LocalError(
            f"Maven's settings {path} name a mirror of Central with a user or password in its address, which every "
            f"user of this machine could read: use a mirror that needs none."
        )
    return url
