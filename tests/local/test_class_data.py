from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ackstream.errors import LocalError
from ackstream.local import jars, machine, submit


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "cache", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_without_an_archive_there_are_no_options():
    assert submit.java_options() == ""


def test_an_archive_is_used():
    archive = submit.archive()
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert submit.java_options().split()[0] == f"-XX:SharedArchiveFile={archive}"


def test_without_java_the_archive_is_not_what_one_is_told_about(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert submit.java_options() == ""
    with pytest.raises(LocalError, match="JAVA_HOME is /nowhere"):
        submit.archive_classes()


def test_other_jars_have_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "jars").mkdir()
    before = submit.archive()
    monkeypatch.setattr(machine, "spark_home", lambda: tmp_path)
    empty = submit.archive()
    (tmp_path / "jars" / "spark-core.jar").write_bytes(b"1")
    assert len({before, empty, submit.archive()}) == 3


def test_a_program_that_fails_leaves_nothing_behind(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").symlink_to("/bin/false")
    monkeypatch.setattr(machine, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(jars, "resolve", lambda *_: [])
    assert not submit.archive_classes()
    assert not list((cache / "class-data").glob("[!l]*"))


def test_of_several_processes_one_writes_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"echo started >> {tmp_path}/log\n"
        'while [ "$1" != --properties-file ]; do shift; done\n'
        r"""touch "$(sed -n 's/.*ArchiveClassesAtExit\\u003d\([^\\]*\).*/\1/p' "$2")" """
    )
    program.chmod(0o700)
    monkeypatch.setattr(machine, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(jars, "resolve", lambda *_: [])
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda _: submit.archive_classes(), range(3)))
    assert (tmp_path / "log").read_text().splitlines() == ["started"]


def test_a_damaged_archive_is_ignored_without_a_word():
    archive = submit.archive()
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"damaged")
    command = [str(machine.find_java().program), *submit.java_options().split(), "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == ""
    assert answer.stderr.startswith("openjdk") or "version" in answer.stderr.splitlines()[0]
