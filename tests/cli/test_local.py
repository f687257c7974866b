from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ackstream.cli import local
from ackstream.cli.main import app
from ackstream.local import jars
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run in an empty directory, with ports of its own and an empty cache; the value is the broker's port."""
    port, controller_port = free_ports(2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ACKSTREAM_LOCAL_PORT", str(port))
    monkeypatch.setenv("ACKSTREAM_LOCAL_CONTROLLER_PORT", str(controller_port))
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", f"localhost:{port}")
    return port


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_status_tells_that_nothing_is_there():
    result = run("status")
    assert result.exit_code == 1
    assert "not downloaded yet" in result.stdout
    assert "not running\n" in "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"


def test_status_tells_that_there_is_no_java(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "JAVA_HOME is /nowhere" in run("status").stdout


def test_down_without_a_broker_is_no_error():
    result = run("down")
    assert result.exit_code == 0
    assert "was not running" in result.stdout


@pytest.mark.parametrize("bootstrap", ["kafka.example:9092", "localhost:1"])
def test_up_does_not_start_one_kafka_and_use_another(monkeypatch: pytest.MonkeyPatch, elsewhere: int, bootstrap: str):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", bootstrap)
    result = run("up")
    assert result.exit_code == 2
    assert f"kafka.bootstrap is {bootstrap}, but `ackstream up` starts Kafka at localhost:{elsewhere}" in result.stderr


def test_jars_prints_a_line_for_each_or_one_for_spark_submit(monkeypatch: pytest.MonkeyPatch):
    found = {"spark": [Path("/a.jar"), Path("/b.jar")], "broker": [Path("/c.jar")]}
    monkeypatch.setattr(jars, "resolve", lambda name, _: found[name])
    assert run("jars").stdout == "/a.jar\n/b.jar\n"
    assert run("jars", "spark", "broker").stdout == "/a.jar\n/b.jar\n/c.jar\n"
    assert run("jars", "--comma").stdout == "/a.jar,/b.jar\n"


@pytest.mark.parametrize(("written", "code"), [(True, 0), (False, 1)])
def test_jars_archives_the_classes_on_request(monkeypatch: pytest.MonkeyPatch, *, written: bool, code: int):
    monkeypatch.setattr(jars, "resolve", lambda *_: [Path("/a.jar")])
    monkeypatch.setattr(local, "archive_classes", lambda: written)
    result = run("jars", "--archive")
    assert (result.exit_code, result.stdout) == (code, "/a.jar\n")
    assert ("This Java writes no archive" in result.stderr) is not written


def test_jars_refuses_an_unknown_configuration():
    result = run("jars", "kafka")
    assert result.exit_code == 1
    assert result.stderr == "Unknown jar configuration 'kafka': use spark or broker.\n"


def test_submit_prints_the_line_and_runs_it(monkeypatch: pytest.MonkeyPatch):
    ran: list[list[str]] = []
    monkeypatch.setattr(local, "run", ran.append)
    monkeypatch.setattr(jars, "resolve", lambda *_: [Path("/a b.jar")])
    dry = run("submit", "correlate", "--dry-run", "x", "--y")
    assert dry.exit_code == 0
    assert "spark-submit --name 'ackstream correlate'" in dry.stdout
    assert "--jars '/a b.jar'" in dry.stdout
    assert dry.stdout.endswith("correlate.py x --y\n")
    assert ran == []
    assert run("submit", "correlate").stdout == ""
    assert ran[0][-1].endswith("jobs/correlate.py")


def test_submit_shows_which_entries_the_settings_make_but_not_their_values(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jars, "resolve", lambda *_: [])
    monkeypatch.setenv(
        "ACKSTREAM_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.my.own": "hunter2"}'
    )
    dry = run("submit", "correlate", "--dry-run")
    assert dry.stderr == "  spark.hadoop.fs.s3a.secret.key=**********\n  spark.my.own=**********\n"
    assert "hunter2" not in dry.stdout


def test_submit_answers_an_unknown_job_with_the_known_ones():
    result = run("submit", "nothing")
    assert result.exit_code == 1
    assert "There is no job 'nothing'; the jobs in" in result.stderr
