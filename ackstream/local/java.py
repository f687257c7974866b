"""The Java that Spark and the one-node broker run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST, NEWEST = 17, 25
"""The releases that Spark 4.2 runs on, by its documentation: 17, 21 and 25."""

_REMEDY = "install Java 17 or 21 (Debian and Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME to one"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Java:
    """A suitable Java: the program and its feature release, such as 17."""

    program: Path
    release: int


def find(environment: Mapping[str, str] | None = None) -> Java:
    """Find Java where Spark looks for it: in ``JAVA_HOME``, then on the ``PATH``.

    :param environment: the environment variables; ``None`` takes the process's
    :raises LocalError: there is no Java, it does not run, or its release is not from 17 to 25; with the remedy
    """
    environment = os.environ if environment is None else environment
    program = _program(environment)
    text = _version_text(program)
    found = _VERSION.search(text)
    if not found:
        raise LocalError(f"The Java at {program} does not report its version ({_first_line(text)}): {_REMEDY}.")
    # before Java 9 the release was the second number: 1.8
    release = int(found[2]) if found[1] == "1" and found[2] else int(found[1])
    if not OLDEST <= release <= NEWEST:
        raise LocalError(
            f"The Java at {program} is version {release}, but Spark 4.2 and Kafka 4.1 run on {OLDEST} to {NEWEST}: "
            f"{_REMEDY}."
        )
    return Java(program, release)


def _program(environment: Mapping[str, str]) -> Path:
    if home := environment.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK) or program.is_dir():
            raise LocalError(f"JAVA_HOME is {home}, but there is no program {program}: correct JAVA_HOME or unset it.")
        return program
    found = shutil.which("java", path=environment.get("PATH", ""))
    if not found:
        raise LocalError(f"No Java was found (JAVA_HOME is not set and no java is on the PATH): {_REMEDY}.")
    return Path(found)


def _version_text(program: Path) -> str:
    try:
        finished = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalError(f"The Java at {program} does not start ({error}): {_REMEDY}.") from None
    text = finished.stderr + finished.stdout
    if finished.returncode:
        # macOS has a /usr/bin/java that only prints that there is no Java
        raise LocalError(f"The Java at {program} does not start ({_first_line(text)}): {_REMEDY}.")
    return text


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".") or "it prints nothing"


if __name__ == "__main__":
    # `make` runs this before anything is installed: this module and its imports need the standard library alone
    try:
        find()
    except LocalError as error:
        sys.exit(str(error))
