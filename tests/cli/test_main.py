from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from kafka.errors import KafkaConnectionError, RequestTimedOutError
from typer.testing import CliRunner, Result

from ackstream import __version__
from ackstream.cli.main import Commands, app
from ackstream.client import RequestTimeout, SettleTimeout
from ackstream.errors import (
    EXTRAS,
    AccessRefusedError,
    BadParameterError,
    InconsistentQosError,
    InputError,
    LocalError,
    SettingsError,
    StartError,
    UnreachableError,
)
from ackstream.local import machine
from tests.cli.commands import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failed(error: BaseException) -> Result:
    """Return the result of a command that raises an error."""
    failing = typer.Typer(cls=Commands)

    @failing.command()
    def first() -> None:
        raise error

    failing.command("second")(lambda: None)
    return CliRunner().invoke(failing, ["first"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("One setting."), 2),
        (InputError("One [/option]."), 2),
        (BadParameterError("A reserved header."), 2),
        (InconsistentQosError("A name that is too long."), 2),
        (LocalError("No [Java] here."), 1),
        (StartError("Not like this. " * 20), 1),
        (AccessRefusedError("Not with this password."), 1),
        (UnreachableError("No Kafka."), 3),
        (RequestTimeout("No reply.", "c-1"), 3),
        (SettleTimeout("No answer of the job."), 3),
    ],
)
def test_an_error_of_the_product_is_its_sentence_and_an_exit_code(error: Exception, code: int):
    result = failed(error)
    assert result.exit_code == code
    assert result.stderr == f"{error}\n"
    assert result.stdout == ""


@pytest.mark.parametrize("error", [RequestTimedOutError("after 30 s"), KafkaConnectionError("socket disconnected")])
def test_a_broker_that_goes_away_in_the_middle_of_a_command_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", "localhost:1")
    result = failed(error)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("No Kafka answers at localhost:1: start one with `ackstream up`")


def test_an_error_of_the_program_is_not_hidden():
    assert isinstance(failed(ZeroDivisionError()).exception, ZeroDivisionError)


def test_ctrl_c_is_the_code_of_shells():
    assert failed(KeyboardInterrupt()).exit_code == 130


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], ["submit", "--help"], ["send", "-h"]])
def test_help_and_version_load_no_library_but_those_of_the_command_line(arguments: list[str]):
    # Typer takes pydantic for the options of a command
    code = (
        f"import sys; sys.argv = ['ackstream', *{arguments!r}]\n"
        "from ackstream.__main__ import main\n"
        "try: main()\n"
        "finally: print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    slow = {"cryptography", "kafka", "pydantic", *(package for packages in EXTRAS.values() for package in packages)}
    of_the_command_line = {*EXTRAS["cli"], *(() if arguments[0].startswith("-") else ("pydantic",))}
    assert not (slow - of_the_command_line) & set(done.stderr.split())


def test_the_version_is_that_of_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "ackstream", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"ackstream {__version__}\n"


COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_what_the_code_says_brackets_included(name: str):
    shown = " ".join(run(name, "--help", COLUMNS="120").output.split())
    assert " ".join(COMMANDS[name].help.split()) in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("named", [True, False])
def test_the_settings_file_may_be_named_for_each_command(tmp_path: Path, *, named: bool):
    file = tmp_path / "mine.toml"
    file.write_text('[lake]\npath = "/elsewhere"\n[local]\nport = 1\n[kafka]\nbootstrap = "localhost:1"\n', "utf-8")
    command = [sys.executable, "-m", "ackstream", *(["--settings", str(file)] if named else []), "status", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        | ({} if named else {"ACKSTREAM_CONF": str(file)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert (found["settings"], found["lake"], found["responds"]) == (str(file), "/elsewhere", False)


def test_a_settings_file_that_is_missing_is_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # the command sets it for the processes it starts
    monkeypatch.setenv("ACKSTREAM_CONF", "")
    result = run("--settings", str(tmp_path / "none.toml"), "status")
    assert result.exit_code == 2
    assert "none.toml does not exist; correct --settings or ACKSTREAM_CONF" in result.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("ackstream mig", ["migrate"]),
        ("ackstream submit co", ["correlate"]),
        ("ackstream outcomes slow", ["slowest_labels"]),
        ("ackstream submit --deploy-mode cl", ["client", "cluster"]),
    ],
)
def test_a_shell_completes_commands_options_and_arguments(words: str, completed: list[str]):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['ackstream']; from ackstream.__main__ import main; main()"],
        cwd=ROOT,
        env={
            **os.environ,
            "_ACKSTREAM_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == completed


def test_without_a_command_the_help_is_shown():
    result = run()
    assert "Usage" in result.output
    for command in ("up", "down", "status", "jars", "submit", "conformance"):
        assert f" {command} " in result.output
    assert "Exit codes: 0 done; 1 failed" in result.output


# -- ackstream demo ----------------------------------------------------------------------------------------------------


def ending(monkeypatch: pytest.MonkeyPatch, end: Any) -> list[Any]:
    asked: list[Any] = []

    def course(secure: bool, _console: Any, number: int, rate: float, *_: Any) -> bool:  # noqa: FBT001 - as it is given
        asked.append((number, rate, secure))
        if isinstance(end, BaseException):
            raise end
        return bool(end)

    shared = SimpleNamespace(environment=lambda *_, secure: nullcontext(secure), run=course)
    monkeypatch.setattr(machine, "shared_with_tests", lambda _: shared)
    return asked


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_tells_whether_it_adds_up(monkeypatch: pytest.MonkeyPatch, *, good: bool, code: int):
    asked = ending(monkeypatch, good)
    assert run("demo").exit_code == code
    assert asked == [(2_000, 50, False)]


def test_the_number_and_the_rate_may_be_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = ending(monkeypatch, end=True)
    run("demo", "--commands", "10", "--rate", "5", "--secure")
    assert asked == [(10, 5, True)]


def test_ctrl_c_is_a_sentence_and_the_code_of_shells(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, KeyboardInterrupt())
    result = run("demo")
    assert result.exit_code == 130
    assert result.stdout == "Stopped; nothing is left running.\n"


def test_what_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, LocalError("No Java was found."))
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "No Java was found.\n"
