"""The tutorial as a newcomer follows it: the commands of the page, typed in two terminals, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.harness.ports import free_ports
from tests.harness.waiting import eventually

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/start/tutorial.md").read_text("utf-8")
BLOCK = re.compile(r"In the (first|second) terminal:\n\n```\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
STEPS = [(terminal, commands.splitlines(), shown or "") for terminal, commands, shown in BLOCK.findall(PAGE)]
"""The terminal, what is typed there, and what appears then."""

PARTY, JOBS = "ackstream ack ", "ackstream run "
REPEATED = ("ackstream send ", "ackstream sql ", "ackstream outcomes ")
"""What a newcomer types again where the machine is slow: archive has not committed yet, or correlate is behind."""
SILENT, LAST = "fleet:seen", "kill %1"
OK = 200

_HEARD = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""Nohup lets all that the tests start ignore the signal."""
SHELL = [sys.executable, "-c", f"{_HEARD}; import pty; pty.spawn(['bash', '--norc', '--noprofile', '-i'])"]


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, directory: Path, environment: dict[str, str], name: str) -> None:
        self._screen, self._asked = directory / f"{name}.txt", count()
        with self._screen.open("wb") as screen:
            self._shell = subprocess.Popen(
                SHELL, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=screen, stderr=screen
            )

    def type(self, keys: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(keys.encode())
        self._shell.stdin.flush()

    def shows(self) -> str:
        # a terminal ends its lines with both characters
        return self._screen.read_text("utf-8", "replace").replace("\r", "")

    def run(self, command: str) -> tuple[int, str]:
        """Type a command and wait for its end; return its exit code, and what it has shown."""
        mark, before = f"ended-{next(self._asked)}", len(self.shows())
        self.type(f"{command}\necho {mark}:$?\n")
        # as typed, the mark has no number behind it
        ended = re.compile(rf"^{mark}:(\d+)$", re.MULTILINE)
        found = eventually(lambda: ended.search(self.shows(), before), f"the end of {command}: {self.shows()}")
        return int(found[1]), self.shows()[before:]

    def close(self) -> None:
        """Close the window: what still runs in it gets SIGHUP."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.terminate()
        self._shell.wait()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return that of a shell with ackstream on its path, whose Kafka uses free ports."""
    port, controller_port, metrics_port = free_ports(3)
    program = tmp_path / "bin" / "ackstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ackstream "$@"\n')
    program.chmod(0o755)
    own = {
        "ACKSTREAM_KAFKA_BOOTSTRAP": f"localhost:{port}",
        "ACKSTREAM_LOCAL_PORT": str(port),
        "ACKSTREAM_LOCAL_CONTROLLER_PORT": str(controller_port),
        "ACKSTREAM_METRICS_PORT": str(metrics_port),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PS1": "",
    }
    return {name: text for name, text in os.environ.items() if not name.startswith("ACKSTREAM_")} | own


@pytest.fixture
def terminals(tmp_path: Path, environment: dict[str, str]) -> Iterator[dict[str, Terminal]]:
    opened = {name: Terminal(tmp_path, environment, name) for name in ("first", "second")}
    try:
        yield opened
    finally:
        for terminal in opened.values():
            terminal.close()
        # where the test has failed halfway
        (tmp_path / "lamp").mkdir(exist_ok=True)
        subprocess.run(["ackstream", "down"], cwd=tmp_path / "lamp", env=environment, check=False, capture_output=True)


def _lines(text: str) -> set[str]:
    """Return the lines of a text, without the times, which differ from run to run."""
    timeless = re.sub(r"\d+\.\d+ s\b", "N s", re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text))
    return {line.rstrip() for line in timeless.splitlines()}


def _is_ready(port: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == OK)
    except OSError:
        return False


def _play(terminal: Terminal, command: str, expected: str) -> None:
    """Type a command as the page has it, and check what the page says of it."""

    def as_expected() -> bool:
        status, shown = terminal.run(command)
        return status == (1 if SILENT in command else 0) and _lines(expected) <= _lines(shown)

    if command.startswith(PARTY):
        terminal.type(f"{command}\n")
        eventually(lambda: _lines(expected) <= _lines(terminal.shows()), f"{command} to begin")
    elif command.startswith(REPEATED):
        eventually(as_expected, f"{command} to show {expected}")
    elif command == "wait":
        # its exit code is that of the signal
        terminal.run(command)
    else:
        assert as_expected(), terminal.shows()


def test_the_page_has_two_terminals_and_says_what_they_show() -> None:
    assert {terminal for terminal, _, _ in STEPS} == {"first", "second"}
    assert sum(bool(expected) for _, _, expected in STEPS) == 4


def test_the_tutorial_runs_as_it_stands(terminals: dict[str, Terminal], environment: dict[str, str]) -> None:
    for name, commands, expected in STEPS:
        for command in commands:
            if command == LAST:
                # the lamp is in the foreground
                terminals[name].type("\x03")
            _play(terminals[name], command, expected if command == commands[-1] else "")
            if command.startswith(JOBS):
                eventually(lambda: _is_ready(environment["ACKSTREAM_METRICS_PORT"]), "the jobs to be ready")
    (lamp,) = re.findall(r"```text\n(\S+  lamp-1  .*\n)```", PAGE)
    assert _lines(lamp) <= _lines(terminals["first"].shows())
