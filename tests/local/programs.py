"""Programs that tests put in the place of Java."""

from __future__ import annotations

import sys
from pathlib import Path

VERSION_17 = 'openjdk version "17.0.15" 2025-04-15'


def write_program(path: Path, body: str) -> Path:
    """Write an executable Python program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -S\nimport sys\n{body}\n", "utf-8")
    path.chmod(0o755)
    return path


def java_home(directory: Path, body: str = "", *, version: str = VERSION_17) -> Path:
    """Write a Java that tells its version, and else does as the body says; return its ``JAVA_HOME``."""
    answer = f"if '-version' in sys.argv:\n    print({version!r}, file=sys.stderr)\n    sys.exit(0)\n"
    write_program(directory / "bin" / "java", answer + body)
    return directory
