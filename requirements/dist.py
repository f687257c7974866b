"""Install the packages of ``dist/`` in empty environments, and run them: ``make dist``, ``make dist-full``.

The environments are made by each named Python. Dependencies are resolved anew, as for a user, and not taken from the
pinned lists.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK = "import ackstream.client, ackstream.aio; print(ackstream.__version__)"
SECONDS = 1_200


def run(command: Sequence[str | Path], directory: Path, *, code: int = 0) -> str:
    """Run a program away from the checkout, with a broker's ports that are free; return its output.

    :raises SystemExit: its exit code is another one; with its output
    """
    left = ("ACKSTREAM_", "JAVA_HOME", "PYTHON")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(left)}
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        for name, found in (("PORT", one), ("CONTROLLER_PORT", other)):
            environment[f"ACKSTREAM_LOCAL_{name}"] = str(found.getsockname()[1])
    done = subprocess.run(  # noqa: S603 - fixed programs, no shell
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode != code:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check(python: str, package: Path, *, full: bool, demo: bool) -> None:
    """Install a package in an empty environment; run the SDK, and with all extras and their Java commands and demo."""
    with tempfile.TemporaryDirectory(prefix="ackstream-dist-") as name:
        directory = Path(name)
        programs = directory / "environment" / "bin"
        run([python, "-m", "venv", programs.parent], directory)
        install: list[str | Path] = [
            programs / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        run([*install, package], directory)
        version = run([programs / "python", "-W", "error::SyntaxWarning", "-c", SDK], directory).strip()
        if f"ackstream-{version}" not in package.name:
            raise SystemExit(f"{package.name} has the version {version}.")
        missing = run([programs / "ackstream", "--help"], directory, code=1)
        if "ackstream[cli]" not in missing:
            raise SystemExit(f"Without extras the command prints: {missing}")
        print(f"{python}, {package.name}: the SDK runs", flush=True)
        if not full:
            return
        run([*install, f"{package}[all,java]"], directory)
        run([programs / "python", "-m", "pip", "check"], directory)
        for arguments in (["--help"], ["topics", "--asyncapi"], ["submit", "correlate", "--dry-run"]):
            run([programs / "ackstream", *arguments], directory)
        print(f"{python}, {package.name}[all,java]: the commands run", flush=True)
        if demo:
            java = directory / "environment/lib"
            if str(java) not in run([programs / "ackstream", "status"], directory):
                raise SystemExit("The Java is not that of the extra.")
            run([programs / "ackstream", "demo", "--commands", "200"], directory)
            print(f"{python}, {package.name}[all,java]: the demo runs", flush=True)


def main() -> None:
    """Check the wheel, which is built from the sdist, with each Python; in full the sdist, too, with the first one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--full", action="store_true", help="all extras, and the demo with the last Python")
    given = parser.parse_args()
    (wheel,), (source,) = (sorted((ROOT / "dist").glob(f"ackstream-*{kind}")) for kind in (".whl", ".tar.gz"))
    if given.full:
        check(given.pythons[0], source, full=False, demo=False)
    for python in given.pythons:
        check(python, wheel, full=given.full, demo=given.full and python == given.pythons[-1])


if __name__ == "__main__":
    main()
