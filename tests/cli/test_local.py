from __future__ import annotations

import json
from pathlib import Path

import pytest

from ackstream.cli.administration import topics_of_applications
from ackstream.kafka import clients
from ackstream.local import jars, submit
from ackstream.redriving import RedriveReport
from ackstream.settings import Kafka, Settings, load
from tests.cli.commands import run
from tests.harness.ports import free_ports


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


@pytest.mark.parametrize(
    ("report", "out", "err"),
    [
        (RedriveReport(3, 1, 2), "2 of 3 were sent; 1 were sent before.\n", ""),
        (
            RedriveReport(3, 0, 3, returned=2),
            "3 of 3 were sent; 0 were sent before. 2 of them are dead letters again: remove the cause first.\n",
            "",
        ),
        (RedriveReport(), "0 of 0 were sent; 0 were sent before.\n", "outcomes dead-letters-by-reason` lists reas"),
    ],
)
def test_redrive_counts_letters_that_came_back_and_helps_with_a_condition_that_meets_none(
    monkeypatch: pytest.MonkeyPatch, report: RedriveReport, out: str, err: str
):
    monkeypatch.setattr("ackstream.redriving.redrive", lambda *_, **__: report)
    result = run("redrive", "reason = 'timeout.invalid'")
    assert (result.exit_code, result.stdout) == (0, out)
    assert err in result.stderr
    assert bool(err) == ("No dead letter" in result.stderr)


def test_status_tells_that_nothing_is_there():
    result = run("status")
    assert result.exit_code == 3
    assert "not downloaded yet" in result.stdout
    assert "not running\n" in "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"


def test_status_tells_that_there_is_no_java(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "JAVA_HOME is /nowhere" in run("status").stdout


def test_the_settings_that_are_printed_are_a_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = run("settings")
    assert (printed.exit_code, printed.stderr) == (0, "")
    (tmp_path / "mine.toml").write_text(printed.stdout, "utf-8")
    monkeypatch.delenv("ACKSTREAM_KAFKA_BOOTSTRAP")
    monkeypatch.setenv("ACKSTREAM_CONF", str(tmp_path / "mine.toml"))
    assert load().correlate == Settings().correlate


def test_status_says_which_settings_hold(tmp_path: Path):
    assert "the defaults: there is no conf/ackstream.toml here" in run("status").stdout
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/ackstream.toml").touch()
    assert str(tmp_path / "conf/ackstream.toml") in run("status").stdout


def test_status_of_a_remote_kafka_is_about_that_one(monkeypatch: pytest.MonkeyPatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", f"127.0.0.1:{port}")
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    result = run("status", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 3
    assert found["Kafka"] == f"not responding at 127.0.0.1:{port}"
    assert found["topics"].startswith(f"No Kafka answers at 127.0.0.1:{port}")
    assert not {"data", "log"} & found.keys()


@pytest.mark.integration
def test_status_of_a_kafka_that_was_started_elsewhere_names_its_process(kafka: Kafka, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ACKSTREAM_LOCAL_PORT", kafka.bootstrap.rpartition(":")[2])
    result = run("status", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["responds"]) == (0, True)
    assert found["Kafka"].startswith(f"responding at {kafka.bootstrap}: java")
    assert found["Kafka"].endswith("which was not started from here")


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


def test_up_creates_topics_of_applications_that_the_settings_name_literally():
    named = {"request_topics": ("orders", "shop.*", r"shop\.paid", "acks"), "ack_topics": ("orders", "a|b", "x_1-y")}
    settings = Settings.model_validate({"correlate": named})
    found = topics_of_applications(settings)
    assert [settings.kafka.topic(name) for name in found] == ["orders", "shop.paid", "x_1-y"]


def test_jars_prints_a_line_for_each_or_one_for_spark_submit(monkeypatch: pytest.MonkeyPatch):
    found = {"spark": [Path("/a.jar"), Path("/b.jar")], "broker": [Path("/c.jar")]}
    monkeypatch.setattr(jars, "resolve", lambda name, _: found[name])
    assert run("jars").stdout == "/a.jar\n/b.jar\n"
    assert run("jars", "spark", "broker").stdout == "/a.jar\n/b.jar\n/c.jar\n"
    assert run("jars", "--comma").stdout == "/a.jar,/b.jar\n"


@pytest.mark.parametrize(("written", "code"), [(True, 0), (False, 1)])
def test_jars_archives_the_classes_on_request(monkeypatch: pytest.MonkeyPatch, *, written: bool, code: int):
    monkeypatch.setattr(jars, "resolve", lambda *_: [Path("/a.jar")])
    monkeypatch.setattr(submit, "archive_classes", lambda: written)
    result = run("jars", "--archive")
    assert (result.exit_code, result.stdout) == (code, "/a.jar\n")
    assert ("This Java writes no archive" in result.stderr) is not written


def test_jars_refuses_an_unknown_configuration():
    result = run("jars", "kafka")
    assert result.exit_code == 2
    assert result.stderr == "Unknown jar configuration 'kafka': use spark or broker.\n"
