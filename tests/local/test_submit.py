from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ackstream.errors import LocalError
from ackstream.local import installation, jars, submit
from ackstream.settings import Settings, Spark


def test_a_checkout_keeps_conf_and_jobs_beside_the_package():
    assert installation.installation_root() == Path(__file__).parents[2]
    assert installation.conf("ivy.xml").is_file()
    assert installation.entry_point("correlate").is_file()


def test_a_wheel_keeps_them_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "_data").mkdir()
    monkeypatch.setattr(installation, "PACKAGE", tmp_path)
    assert installation.installation_root() == tmp_path / "_data"


def test_an_installation_without_its_files_is_reported():
    with pytest.raises(LocalError, match=r"nothing\.xml is missing from the installation of ackstream: install"):
        installation.conf("nothing.xml")


def test_an_unknown_job_is_answered_with_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installation, "installation_root", lambda: tmp_path)
    with pytest.raises(LocalError, match=r"There is no job 'twin'; the jobs in .* are: none\.$"):
        installation.entry_point("twin")
    (tmp_path / "jobs").mkdir()
    for name in ("correlate.py", "archive.py"):
        (tmp_path / "jobs" / name).touch()
    with pytest.raises(LocalError, match=r"are: archive, correlate\.$"):
        installation.entry_point("twin")


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/var/cache/me", "/var/cache/me/ackstream"), ("", "{home}/.cache/ackstream"), ("x", "{home}/.cache/ackstream")],
)
def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(installation.cache()) == expected.format(home=tmp_path)


JARS = [Path("/jars/one.jar"), Path("/jars/two.jar")]


@pytest.fixture(autouse=True)
def fake_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "resolve", lambda *_: JARS)
    monkeypatch.setattr(submit, "java_options", lambda: "")


def test_the_line_holds_everything_that_spark_needs():
    spark = Spark(master="spark://host:7077", driver_memory="3g", conf={"spark.a": "1 2", "spark.b": "=x"})
    home = installation.spark_home()
    assert submit.submit_command(Settings(spark=spark), "correlate", "an", "argument") == [
        f"{home}/bin/spark-submit",
        *("--name", "ackstream correlate"),
        *("--master", "spark://host:7077"),
        *("--driver-memory", "3g"),
        *("--properties-file", str(installation.conf("spark-defaults.conf"))),
        *("--jars", "/jars/one.jar,/jars/two.jar"),
        *("--conf", "spark.a=1 2"),
        *("--conf", "spark.b==x"),
        str(installation.entry_point("correlate")),
        "an",
        "argument",
    ]  # fmt: skip
    assert os.access(home / "bin" / "spark-submit", os.X_OK)


def test_an_unknown_job_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jars, "resolve", lambda *_: pytest.fail("fetched"))
    with pytest.raises(LocalError, match=r"There is no job 'corelate'; the jobs in .* are: .*correlate"):
        submit.submit_command(Settings(), "corelate")


def test_spark_runs_this_interpreter_and_this_pyspark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/an-older-spark")
    environment = submit.submit_environment()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment["SPARK_HOME"] == str(installation.spark_home())
    assert environment["LOG4J_CONFIGURATION_FILE"].startswith("file:///")
    assert environment["PATH"] == os.environ["PATH"]


def test_running_becomes_the_command(monkeypatch: pytest.MonkeyPatch):
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execve", lambda program, command, _: became.append((program, command)))
    submit.run(["/bin/spark-submit", "job.py"])
    assert became == [("/bin/spark-submit", ["/bin/spark-submit", "job.py"])]


def test_a_wrong_java_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("ran"))
    with pytest.raises(LocalError, match=r"^JAVA_HOME is /nowhere"):
        submit.run(["spark-submit"])


def test_on_one_machine_spark_needs_no_host_name():
    command = submit.submit_command(Settings(spark=Spark(conf={"spark.driver.host": "mine"})), "correlate")
    conf = [command[place + 1] for place, text in enumerate(command) if text == "--conf"]
    # spark-submit takes the last one: what the settings say wins
    assert conf == ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.driver.host=mine"]


def test_no_secret_is_in_the_command():
    secrets = {
        "spark.hadoop.fs.s3a.secret.key": "s1",
        "spark.hadoop.fs.s3a.access.key": "s2",
        "spark.ssl.keyPassword": "s3",
        "spark.hadoop.fs.s3a.session.token": "s4",
    }
    command = submit.submit_command(Settings(spark=Spark(conf=secrets | {"spark.a": "shown"})), "correlate")
    assert "spark.a=shown" in command
    assert not any(value in text for value in secrets.values() for text in command if text.startswith("spark."))


def test_the_driver_gets_the_archive_of_its_classes_beside_the_options_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(submit, "java_options", lambda: "-XX:SharedArchiveFile=/cache/spark.jsa")
    command = submit.submit_command(Settings(spark=Spark(conf={submit.JAVA_OPTIONS: "-Dmine=1"})), "correlate")
    conf = [command[place + 1] for place, text in enumerate(command) if text == "--conf"]
    assert conf[-1] == f"{submit.JAVA_OPTIONS}=-XX:SharedArchiveFile=/cache/spark.jsa -Dmine=1"
