"""Files that commands create can be read by their owner alone, whatever the umask of the shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ackstream.cli.main import Commands, app
from ackstream.client.core.storage import PublishStore
from ackstream.local.machine import keep_private, locked, write_file


@pytest.fixture(autouse=True)
def _open_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


def _modes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*")}


def test_every_command_creates_what_only_its_owner_can_read(tmp_path: Path) -> None:
    program = typer.Typer(cls=Commands)

    @program.command()
    def first() -> None:
        with locked(tmp_path / "data/lock", "", lambda: None):
            (tmp_path / "data/log").write_text("secret")

    program.command("second")(lambda: None)
    assert CliRunner().invoke(program, ["first"]).exit_code == 0
    assert _modes(tmp_path) == {"data": 0o700, "data/lock": 0o600, "data/log": 0o600}


def test_a_stricter_umask_stays() -> None:
    os.umask(0o777)
    keep_private()
    assert os.umask(0o777) == 0o777


def test_the_program_itself_is_such_a_command() -> None:
    assert isinstance(typer.main.get_command(app), Commands)


def test_a_file_that_is_written_whole_is_private_whatever_a_killed_writer_left(tmp_path: Path) -> None:
    # another process may be writing it
    left = tmp_path / "x.json.part"
    left.write_text("left over")
    write_file(tmp_path / "x.json", b"{}")
    assert left.read_text() == "left over"
    left.unlink()
    assert _modes(tmp_path) == {"x.json": 0o600}


def test_the_store_of_a_client_is_private(tmp_path: Path) -> None:
    store = PublishStore(tmp_path / "p1.store", "p1")
    assert set(_modes(tmp_path).values()) == {0o600}
    store.close()
