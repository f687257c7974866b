from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ackstream.errors import InputError, LocalError, SettingsError
from ackstream.local import jars, machine, submit
from ackstream.settings import Settings, Spark
from tests.local.programs import java_home


def test_a_checkout_keeps_conf_and_jobs_beside_the_package():
    assert machine.installation_root() == Path(__file__).parents[2]
    assert machine.conf("ivy.xml").is_file()
    assert machine.entry_point("correlate").is_file()


def test_a_wheel_keeps_them_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "_data").mkdir()
    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    assert machine.installation_root() == tmp_path / "_data"


def test_an_installation_without_its_files_is_reported():
    with pytest.raises(LocalError, match=r"nothing\.xml is missing from the installation of ackstream: install"):
        machine.conf("nothing.xml")


def test_an_unknown_job_is_answered_with_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "installation_root", lambda: tmp_path)
    with pytest.raises(InputError, match=r"There is no job 'twin'; the jobs in .* are: none\.$"):
        machine.entry_point("twin")
    (tmp_path / "jobs").mkdir()
    for name in ("correlate.py", "archive.py"):
        (tmp_path / "jobs" / name).touch()
    with pytest.raises(InputError, match=r"are: archive, correlate\.$"):
        machine.entry_point("twin")


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/var/cache/me", "/var/cache/me/ackstream"), ("", "{home}/.cache/ackstream"), ("x", "{home}/.cache/ackstream")],
)
def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(machine.cache()) == expected.format(home=tmp_path)


JARS = [Path("/jars/one.jar"), Path("/jars/two.jar")]


@pytest.fixture(autouse=True)
def fake_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jars, "resolve", lambda *_: JARS)
    monkeypatch.setattr(submit, "java_options", lambda: "")


def entries(command: list[str]) -> dict[str, str]:
    """Read the file of a command as Java does."""
    lines = Path(command[command.index("--properties-file") + 1]).read_text("ascii").splitlines()
    found = (line.partition("=") for line in lines)
    return {key: value.encode("ascii").decode("unicode_escape") for key, _, value in found}


def test_the_line_and_its_file_hold_everything_that_spark_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", "kafka.example:9092")
    spark = Spark(master="spark://host:7077", driver_memory="3g", conf={"spark.a": " 1 2", "spark.b": "=x\\:#\né"})
    home = machine.spark_home()
    command = submit.submit_command(Settings(spark=spark), "correlate", "an", "argument")
    assert command == [
        f"{home}/bin/spark-submit",
        *("--name", "ackstream correlate"),
        *("--master", "spark://host:7077"),
        *("--deploy-mode", "client"),
        *("--properties-file", str(tmp_path / ".ackstream/submit/correlate.properties")),
        "--load-spark-defaults",
        *("--jars", "/jars/one.jar,/jars/two.jar"),
        str(machine.entry_point("correlate")),
        "an",
        "argument",
    ]  # fmt: skip
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert entries(command) == {
        **submit.defaults(),
        "spark.driver.memory": "3g",
        submit.MERGED: "true",
        "spark.pyspark.driver.python": sys.executable,
        **spark.conf,
    }


def test_an_unknown_job_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jars, "resolve", lambda *_: pytest.fail("fetched"))
    with pytest.raises(InputError, match=r"There is no job 'corelate'; the jobs in .* are: .*correlate"):
        submit.submit_command(Settings(), "corelate")


def test_what_suits_a_laptop_is_for_local_masters_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", "kafka.example:9092")
    laptop = submit.defaults("spark-local.conf").keys()
    assert "spark.ui.enabled" in laptop
    here, there = (
        entries(submit.submit_command(Settings(spark=Spark(master=master)), "correlate"))
        for master in ("local[4]", "yarn")
    )
    assert laptop <= here.keys()
    assert not laptop & there.keys()
    assert submit.defaults().keys() <= there.keys()


def test_spark_runs_this_interpreter_unless_another_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert "PYSPARK_PYTHON" not in submit.submit_environment("yarn")
    assert submit.submit_environment("yarn")["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    assert submit.submit_environment("yarn")["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_on_one_machine_the_workers_run_the_python_that_has_the_product(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert submit.submit_environment("local[2]")["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(("given", "used"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_java_reads_names_of_files_that_are_not_ascii(monkeypatch: pytest.MonkeyPatch, given: str, used: str):
    monkeypatch.setenv("LC_ALL", given)
    assert submit.submit_environment()["LC_ALL"] == used


def test_spark_runs_this_interpreter_and_this_pyspark(monkeypatch: pytest.MonkeyPatch):
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE"):
        monkeypatch.delenv(name, raising=False)
    environment = submit.submit_environment()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment["SPARK_HOME"] == str(machine.spark_home())
    assert environment["LOG4J_CONFIGURATION_FILE"].startswith("file:///")
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("own", [True, False], ids=["java-home", "path"])
def test_spark_s_java_is_that_of_the_user_without_the_module_that_it_warns_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
):
    home = java_home(tmp_path / "a java", "print(sys.argv[1:])")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("OWN_JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    if own:
        monkeypatch.setenv("JAVA_HOME", str(home))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    environment = submit.submit_environment()
    command = [f"{environment['JAVA_HOME']}/bin/java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "Main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['-Da=b c', '', 'Main']\n"
    assert "JAVA_HOME" not in submit.submit_environment("yarn").keys() - os.environ.keys()


def test_running_becomes_the_command(monkeypatch: pytest.MonkeyPatch):
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execve", lambda program, command, _: became.append((program, command)))
    submit.run(["/bin/spark-submit", "job.py"], {})
    assert became == [("/bin/spark-submit", ["/bin/spark-submit", "job.py"])]


def test_a_wrong_java_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("ran"))
    with pytest.raises(LocalError, match=r"^JAVA_HOME is /nowhere"):
        submit.run(["spark-submit"], {})


def test_on_one_machine_spark_needs_no_host_name():
    found = entries(submit.submit_command(Settings(spark=Spark(conf={"spark.driver.host": "mine"})), "correlate"))
    # what the settings say wins
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("mine", "127.0.0.1")


@pytest.mark.parametrize(("given", "used"), [("", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")])
def test_on_one_machine_spark_does_not_look_up_its_name(monkeypatch: pytest.MonkeyPatch, given: str, used: str):
    # an empty value is one that Spark would use
    monkeypatch.setenv("SPARK_LOCAL_IP", given)
    assert submit.submit_environment()["SPARK_LOCAL_IP"] == used


FILES = ":".join(f"/jars/{name}1.jar" for name in submit.BASES)


@pytest.mark.parametrize(
    ("master", "conf", "class_path"),
    [
        ("local", {}, f"{FILES}:{submit.LOCAL_FILES_JAR}"),
        ("local[2]", {submit.CLASS_PATH: "/mine.jar"}, f"{FILES}:{submit.LOCAL_FILES_JAR}:/mine.jar"),
        ("local-cluster[2,1,1024]", {}, None),
        ("spark://host:7077", {submit.CLASS_PATH: "/mine.jar"}, "/mine.jar"),
    ],
)
def test_java_itself_handles_files_where_spark_is_one_process(
    master: str, conf: dict[str, str], class_path: str | None
):
    found = submit.own_entries(
        Settings(spark=Spark(master=master, conf=conf)), [Path("/jars/other.jar"), *map(Path, FILES.split(":"))]
    )
    assert found.get(submit.CLASS_PATH) == class_path
    assert ("spark.scheduler.allocation.file" in found) == master.startswith("local")
    for interface in ("hadoop.fs", "hadoop.fs.AbstractFileSystem", "delta.logStore"):
        assert (f"spark.{interface}.file.impl" in found) == (FILES in (class_path or ""))


def test_the_installation_may_be_in_a_directory_with_spaces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "conf", lambda name: Path("/a b%/conf", name))
    monkeypatch.setattr(submit, "defaults", lambda _: {})
    assert submit.own_entries(Settings())["spark.scheduler.allocation.file"] == "file:/a b%/conf/pools.xml"


SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hunter2-1",
    "spark.hadoop.fs.s3a.access.key": "hunter2-2",
    "spark.ssl.keyPassword": "hunter2-3",
    "spark.hadoop.fs.s3a.session.token": "hunter2-4",
    "spark.hadoop.fs.azure.account.key.store.blob.core.windows.net": "hunter2-5",
    "spark.kafka.clusters.a.sasl.jaas.config": "hunter2-6",
    # no word in the key tells
    "spark.hadoop.my.own": "hunter2-7",
}


def test_no_secret_is_in_the_command_but_in_a_file_of_its_owner():
    command = submit.submit_command(Settings(spark=Spark(conf=SECRETS)), "correlate")
    assert "hunter2" not in " ".join(command)
    assert SECRETS.items() <= entries(command).items()
    path = Path(command[command.index("--properties-file") + 1])
    assert path.stat().st_mode & 0o777 == 0o600


def test_spark_hides_the_same_keys():
    assert submit.defaults()["spark.redaction.regex"] == submit.SECRET.pattern


@pytest.mark.parametrize(
    "key", [submit.JAVA_OPTIONS, "spark.executor.extraJavaOptions", "spark.driver.defaultJavaOptions"]
)
def test_a_secret_among_the_options_of_java_is_refused(key: str):
    conf = {key: "-Xss4m -Djavax.net.ssl.trustStorePassword=hunter2 -Dx=1"}
    sentence = rf"^The setting spark\.conf\.{key} has a value for -Djavax\.net\.ssl\.trustStorePassword, which everyone"
    with pytest.raises(SettingsError, match=sentence) as caught:
        submit.submit_command(Settings(spark=Spark(conf=conf)), "correlate")
    assert "hunter2" not in str(caught.value)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / ".ackstream").touch()
    with pytest.raises(LocalError, match=r"correlate\.properties cannot be written \(.*\): set local\.data"):
        submit.submit_command(Settings(), "correlate")


def test_the_driver_gets_the_archive_of_its_classes_beside_the_options_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(submit, "java_options", lambda: "-XX:SharedArchiveFile=/cache/spark.jsa")
    command = submit.submit_command(Settings(spark=Spark(conf={submit.JAVA_OPTIONS: "-Dmine=1"})), "correlate")
    assert entries(command)[submit.JAVA_OPTIONS] == "-XX:SharedArchiveFile=/cache/spark.jsa -Dmine=1"


def test_the_jvm_logs_json_by_a_second_file_that_has_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOG4J_CONFIGURATION_FILE", raising=False)
    text = submit.submit_environment()["LOG4J_CONFIGURATION_FILE"]
    first, second = submit.submit_environment(log_format="json")["LOG4J_CONFIGURATION_FILE"].split(",")
    assert (first, text.endswith("/log4j2.properties")) == (text, True)
    keys = {line.partition("=")[0] for line in Path(second.removeprefix("file://")).read_text("utf-8").splitlines()}
    assert {key for key in keys if not key.startswith(("#", "appender"))} == set()
