from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ackstream.local import jars, machine, submit
from jobs.together import __main__ as together
from tests.cli import commands

DESTINATIONS = json.dumps([{"name": "copy", "path": "/copy", "type": "async"}])
Ran = list[tuple[list[str], dict[str, str]]]


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run in an empty directory; the value is what spark-submit would have become."""
    found: Ran = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jars, "resolve", lambda *_: [Path("/a b.jar")])
    monkeypatch.setattr(submit, "run", lambda command, environment, _options: found.append((command, environment)))
    monkeypatch.setattr(submit, "java_options", lambda: "")
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "ACKSTREAM_CONF", "ACKSTREAM_KAFKA_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    return found


run = partial(commands.run, "submit")


def entries(command: list[str]) -> dict[str, str]:
    lines = Path(command[command.index("--properties-file") + 1]).read_text("ascii").splitlines()
    return {
        key: value.encode("ascii").decode("unicode_escape") for key, _, value in (line.partition("=") for line in lines)
    }


def following(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_the_line_is_printed_or_run(ran: Ran):
    dry = run("correlate", "--dry-run")
    assert dry.exit_code == 0
    assert "spark-submit --name 'ackstream correlate'" in dry.stdout
    assert "--jars '/a b.jar'" in dry.stdout
    assert ran == []
    started = run("correlate", "--conf", "spark.a=1")
    assert (started.stdout, started.stderr) == ("", "Starting correlate with Spark at local[2].\n")
    ((command, _),) = ran
    assert command[-1].endswith("jobs/correlate.py")


def test_the_line_about_a_start_has_the_format_of_the_log(ran: Ran, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_LOG_FORMAT", "json")
    started = run("correlate")
    assert len(ran) == 1
    (line,) = map(json.loads, started.stderr.splitlines())
    assert (line["program"], line["message"]) == ("correlate", "Starting correlate with Spark at local[2].")


def test_the_line_is_part_of_a_debug_log(ran: Ran, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_LOG_LEVEL", "debug")
    logged = run("correlate", "--conf", "spark.a=hunter2")
    line, entry, _ = logged.stderr.splitlines()
    assert (line.startswith(ran[0][0][0]), entry) == (True, "  spark.a=**********")


def test_options_of_spark_reach_spark(ran: Ran, tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/ackstream.toml").write_text('[spark.conf]\n"spark.a" = "1"\n"spark.b" = "1"\n', "utf-8")
    options = ["--master", "yarn", "--deploy-mode", "cluster", "--conf", "spark.b=2=3", "--conf", "spark.c=3"]
    assert run("correlate", *options).exit_code == 0
    ((command, environment),) = ran
    assert following(command, "--master") == "yarn"
    assert following(command, "--deploy-mode") == "cluster"
    assert "--load-spark-defaults" in command
    found = entries(command)
    assert (found["spark.a"], found["spark.b"], found["spark.c"]) == ("1", "2=3", "3")
    # the driver there has the settings, and no path of this machine
    assert following(command, "--files") == str(tmp_path / "conf/ackstream.toml")
    assert found["spark.yarn.appMasterEnv.ACKSTREAM_CONF"] == "ackstream.toml"
    assert not {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "LOG4J_CONFIGURATION_FILE"} & environment.keys()


@pytest.mark.parametrize(("mode", "driver"), [("client", sys.executable), ("cluster", None)])
def test_a_python_of_the_workers_is_not_that_of_a_driver_on_this_machine(
    ran: Ran, tmp_path: Path, mode: str, driver: str | None
):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/ackstream.toml").write_text("", "utf-8")
    workers = ["--conf", "spark.pyspark.python=./environment/bin/python"]
    assert run("correlate", "--master", "yarn", "--deploy-mode", mode, *workers).exit_code == 0
    ((command, _),) = ran
    assert entries(command).get("spark.pyspark.driver.python") == driver


def test_entries_that_options_of_spark_would_win_over_have_an_effect(ran: Ran):
    conf = ["--conf", "spark.driver.memory=7g", "--conf", "spark.jars=/mine.jar", "--conf", "spark.files=/a,/b"]
    assert run("correlate", *conf).exit_code == 0
    ((command, _),) = ran
    assert following(command, "--jars") == "/a b.jar,/mine.jar"
    assert following(command, "--files") == "/a,/b"
    assert entries(command)["spark.driver.memory"] == "7g"
    assert "--driver-memory" not in command


def test_a_secret_in_an_option_would_be_in_the_list_of_processes(ran: Ran):
    result = run("correlate", "--conf", "spark.executor.extraJavaOptions=-Djavax.net.ssl.trustStorePassword=hunter2")
    assert (result.exit_code, ran) == (2, [])
    assert "hunter2" not in result.output


def test_arguments_of_the_job_follow_the_script(ran: Ran, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_DESTINATIONS", DESTINATIONS)
    assert run("mirror", "copy").exit_code == 0
    assert run("mirror", "--", "copy").exit_code == 0
    assert all(command[-2].endswith("mirror.py") and command[-1] == "copy" for command, _ in ran)
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "There is no job 'nothing'; the jobs in "),
        (["correlate", "--dryrun"], "No such option: --dryrun"),
        (["correlate", "--packages", "x"], "No such option: --packages"),
        (["correlate", "now"], "The job correlate takes no arguments, so 'now' would have no effect: leave it out"),
        (["correlate", "--", "--master", "yarn"], "The job correlate takes no arguments, so '--master' would have no"),
        (["correlate", "--conf", "spark.a"], "--conf is 'spark.a': write KEY=VALUE"),
        (["correlate", "--conf", "spark.master=yarn"], "--conf spark.master would have no effect: use --master."),
        (["correlate", "--deploy-mode", "clutser"], "'clutser' is not one of"),
        (["correlate", "--deploy-mode", "cluster"], "The master local[2] is this machine, so the driver cannot run in"),
        (
            ["correlate", "--deploy-mode", "cluster", "--master", "spark://host:7077"],
            "Spark's own cluster spark://host:7077 runs no drivers in Python: leave out --deploy-mode cluster",
        ),
        (["correlate", "--master", "yarn"], "The master is yarn, and there are no settings for a cluster: "),
        (["mirror"], "There are no destinations: name one in [[destinations]] of the settings."),
    ],
)
def test_wrong_input_is_refused(ran: Ran, arguments: list[str], sentence: str):
    result = run(*arguments, "--dry-run") if "--" not in arguments else run("--dry-run", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert ran == []


def test_a_destination_is_checked_before_spark_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_DESTINATIONS", DESTINATIONS)
    result = run("mirror", "nope", "--dry-run")
    assert result.exit_code == 2
    assert "There is no destination 'nope'" in result.stderr


def test_a_standby_is_an_argument_of_the_job_and_refused_where_there_is_none(ran: Ran, monkeypatch: pytest.MonkeyPatch):
    assert run("correlate", "--standby").exit_code == 0
    assert commands.run("run", "twin", "settle", "--standby").exit_code == 0
    (alone, _), (several, _) = ran
    assert alone[-2:] == [str(machine.entry_point("correlate")), "--standby"]
    assert several[-4:] == [together.__file__, "twin", "settle", "--standby"]
    monkeypatch.setenv("ACKSTREAM_DESTINATIONS", DESTINATIONS)
    result = run("mirror", "copy", "--standby")
    assert (result.exit_code, len(ran)) == (2, 2)
    assert "The mirror has no lease that a standby could wait for: leave out --standby." in result.stderr


def test_a_driver_on_this_machine_may_have_its_settings_from_the_environment(ran: Ran, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", "kafka.example:9092")
    assert run("correlate", "--master", "yarn").exit_code == 0
    ((command, _),) = ran
    assert "--files" not in command
    result = run("correlate", "--master", "yarn", "--deploy-mode", "cluster")
    assert (result.exit_code, "--settings" in result.stderr) == (2, True)


def test_which_entries_the_settings_and_options_make_is_shown_but_not_their_values(monkeypatch: pytest.MonkeyPatch):
    conf: dict[str, Any] = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.my.own": "hunter2"}
    monkeypatch.setenv("ACKSTREAM_SPARK_CONF", json.dumps(conf))
    dry = run("correlate", "--dry-run", "--conf", "spark.more=hunter2")
    assert dry.stderr == "".join(f"  {key}=**********\n" for key in [*conf, "spark.more"])
    assert "hunter2" not in dry.stdout


# -- run ---------------------------------------------------------------------------------------------------------------


def test_several_jobs_run_in_one_session(ran: Ran):
    result = commands.run("run", "correlate", "twin", "correlate")
    assert result.exit_code == 0, result.stderr
    ((command, _),) = ran
    assert following(command, "--name") == "ackstream correlate+twin"
    assert command[-3:] == [together.__file__, "correlate", "twin"]
    assert [job.name for job in together.named(command[-2:])] == ["correlate", "twin", "twin-index"]


@pytest.mark.parametrize("name", ["mirror", "corelate"])
def test_what_cannot_run_with_others_is_refused(ran: Ran, name: str):
    result = commands.run("run", "correlate", name)
    assert (result.exit_code, ran) == (2, [])
    assert result.stderr.startswith(f"'{name}' cannot be run with others: the jobs are archive, correlate, persist,")


def test_each_job_but_the_mirror_can_run_with_others():
    names = [name for name in machine.jobs() if name != "mirror"]
    assert {job.name for job in together.named(names)} == {*names, "twin-index"}
