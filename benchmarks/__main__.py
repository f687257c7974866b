"""Run all benchmarks, each in a process of its own with a broker of its own, so that none affects another."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys

from benchmarks import common, goals

NAMES = (
    "pure", "settling", "queueing", "throughput", "profile", "unasked", "peers", "latency", "growth", "archive", "twin",
    "index", "persist", "acks", "gateway", "idle", "scale", "questions", "rows",
)  # fmt: skip


def main() -> None:
    """Run as a program; unknown arguments are passed to each benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", epilog="Further options: see a benchmark's --help.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(NAMES)}")
    arguments, further = parser.parse_known_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = [name for name in arguments.names or NAMES if _run(name, further) != 0]
    if not further:
        goals.main()
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}")


def _run(name: str, further: list[str]) -> int:
    """Run a benchmark; an interrupted one ends its processes."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *further]
    with subprocess.Popen(command, cwd=common.ROOT, start_new_session=True) as child:
        try:
            return child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise


if __name__ == "__main__":
    main()
