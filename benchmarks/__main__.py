"""Run all benchmarks on one broker, each in a process of its own: a JVM does not get warm at another's expense."""

from __future__ import annotations

import argparse
import subprocess
import sys

from ackstream.settings import load
from benchmarks import broker, common

NAMES = (
    "pure", "settling", "queueing", "throughput", "peers", "latency", "growth", "archive", "twin", "index", "persist",
    "acks", "gateway", "idle", "scale",
)  # fmt: skip


def main() -> None:
    """Run as a program; what is not known goes on to each benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", epilog="Further options: see a benchmark's --help.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(NAMES)}")
    arguments, further = parser.parse_known_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    failed = []
    with broker.running(load(), common.terminal()) as bootstrap:
        for name in arguments.names or NAMES:
            command = [sys.executable, "-m", f"benchmarks.{name}", "--bootstrap", bootstrap, *further]
            if subprocess.run(command, cwd=common.ROOT, check=False).returncode != 0:
                failed.append(name)
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
