"""What a session shows to other users of the machine, which is nothing, and what its JVM logs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from ackstream.errors import StartError
from ackstream.local import jars
from ackstream.local.submit import COLLECTOR, LOCAL_FILES_JAR, SECRET, quick_start
from ackstream.settings import Settings
from ackstream.spark.session import FIXED, check_disks, session
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

PROGRAM = """
import json, os, pathlib
from ackstream.local import jars
from ackstream.settings import load
from ackstream.spark.session import session

def lines():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\\0", b" ").decode("utf-8", "replace")
        except OSError:
            pass

spark = session(load(), "secretive", jars=jars.resolve("spark"), conf={"spark.ui.enabled": "false"})
java = spark._jvm.System.getProperty("sun.java.command")
# which is not in this line itself
planted = "hunter" + "2"
shown = [line for line in lines() if planted in line]
known = {key: spark.conf.get(key) for key in ("spark.hadoop.fs.s3a.secret.key", "spark.sql.extensions", "spark.a")}
known["jars"] = [pathlib.Path(name).name.partition("-")[0] for name in spark.conf.get("spark.jars").split(",")]
memory = spark._jvm.Runtime.getRuntime().maxMemory()
hidden = spark._jvm.org.apache.spark.util.Utils.redact(spark._jsc.sc().conf(), spark._jvm.PythonUtils.toSeq(
    [spark._jvm.scala.Tuple2("spark.hadoop.fs.s3a.secret.key", planted)])).toString()
print(json.dumps([java, shown, known, memory, hidden, os.environ.get("PYSPARK_SUBMIT_ARGS")]))
spark.range(1).write.format("delta").save("table")
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("a.b")
log.warn('It "fails":\\n%s' % chr(27))
log.error("It fails.", spark._jvm.java.lang.IllegalStateException("why\\nnot"))
log.info("nothing")
states = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider StateStoreProviderId[ x=1 ]"
states = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(states)
states.warn("Reading snapshot file...Note that this is normal for the first batch of starting query.")
states.warn("Another line.")
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run the program, as one that a user writes, in the directory ``args``."""
    directory = tmp_path_factory.mktemp("program")
    assert jars.present("spark")
    mine = directory / "mine-1.jar"
    shutil.copy(LOCAL_FILES_JAR, mine)
    conf = {"spark.hadoop.fs.s3a.secret.key": "hunter2 = \\ é", "spark.a": " b", "spark.jars": str(mine)}
    own = {
        "ACKSTREAM_SPARK_CONF": json.dumps(conf),
        "ACKSTREAM_SPARK_DRIVER_MEMORY": "700m",
        "ACKSTREAM_LOG_FORMAT": "json",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        # a machine whose language has other digits
        "JAVA_TOOL_OPTIONS": "-Duser.language=ar -Duser.country=EG",
    }
    environment = {name: text for name, text in os.environ.items() if name != "LOG4J_CONFIGURATION_FILE"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=directory,
        env=environment | own,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    found.args = directory
    return found


def test_no_secret_of_the_settings_is_in_the_list_of_processes(finished: subprocess.CompletedProcess[str]) -> None:
    java, shown, known, memory, hidden, arguments = json.loads(finished.stdout)
    assert {"delta", "kafka", "mine"} <= set(known.pop("jars"))
    assert "--properties-file" in java
    assert shown == []
    assert known == {
        "spark.hadoop.fs.s3a.secret.key": "hunter2 = \\ é",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.a": " b",
    }
    assert 600_000_000 < memory < 750_000_000
    assert "hunter2" not in hidden
    assert arguments is None
    assert "hunter2" not in finished.stderr


def test_the_jvm_logs_json_lines_where_the_program_does(finished: subprocess.CompletedProcess[str]) -> None:
    lines = [json.loads(line) for line in finished.stderr.splitlines() if line.startswith("{")]
    warned, failed = (line for line in lines if line["logger"] == "a.b")
    assert (warned["level"], warned["program"], warned["message"].strip()) == ("warning", "spark", 'It "fails":\n\x1b')
    assert failed["message"].startswith("It fails.\n")
    assert "java.lang.IllegalStateException: why" in failed["message"]
    assert warned["time"].endswith("Z")


def test_the_jvm_does_not_warn_of_the_state_that_a_start_reads(finished: subprocess.CompletedProcess[str]) -> None:
    lines = [json.loads(line) for line in finished.stderr.splitlines() if line.startswith("{")]
    assert [line["message"].strip() for line in lines if "StateStore" in line["logger"]] == ["Another line."]


def test_commits_have_the_same_names_whatever_the_language_of_the_machine(
    finished: subprocess.CompletedProcess[str],
) -> None:
    assert (Path(finished.args) / "table/_delta_log/00000000000000000000.json").exists()


def test_tables_and_checkpoints_are_their_owner_s_alone(jvm: SparkSession, tmp_path: Path) -> None:
    table, copy = str(tmp_path / "lake/table"), str(tmp_path / "lake/copy")
    spark = jvm.newSession()
    spark.range(3).write.format("delta").save(table)

    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format("delta").mode("append").save(copy)

    stream = spark.readStream.format("delta").load(table).writeStream.foreachBatch(write)
    stream.option("checkpointLocation", str(tmp_path / "checkpoints/job")).trigger(availableNow=True).start()
    for query in spark.streams.active:
        query.awaitTermination(PATIENCE_SECONDS)
    made = [path for top in ("lake", "checkpoints") for path in (tmp_path / top).rglob("*")]
    assert {path.parts[len(tmp_path.parts)] for path in made} == {"lake", "checkpoints"}
    assert [str(path) for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("name", ["UCTokenBasedRestClient", "UCDeltaTokenBasedRestClient"])
def test_delta_finds_the_classes_that_it_needs_for_a_unity_catalog(jvm: SparkSession, name: str) -> None:
    # the loader of Java itself, which has Delta's storage for local files, does not see the jars of Spark's loader
    client = jvm._jvm.java.lang.Class.forName(f"io.delta.storage.commit.uccommitcoordinator.{name}")
    assert any("io.unitycatalog." in method.toString() for method in client.getDeclaredMethods())


def test_spark_itself_hides_what_the_product_calls_a_secret(spark: SparkSession) -> None:
    assert spark.conf.get("spark.redaction.regex") == SECRET.pattern


SUBMITTED = """
from ackstream.settings import load
from ackstream.spark.session import session

spark = session(load(), "submitted")
print("found", *(spark.conf.get(f"spark.of.{name}", "-") for name in ("settings", "option", "user")))
"""


def test_options_win_over_the_settings_and_these_over_the_defaults_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/ackstream.toml").write_text(
        '[spark]\ndriver_memory = "700m"\n[spark.conf]\n"spark.of.settings" = "1"\n"spark.of.option" = "1"\n', "utf-8"
    )
    (tmp_path / "user").mkdir()
    (tmp_path / "user/spark-defaults.conf").write_text("spark.of.user 3\nspark.of.settings 3\n", "utf-8")
    (tmp_path / "program.py").write_text(SUBMITTED, "utf-8")
    # as a job is started, with this program in its place
    code = (
        "from ackstream.local import submit; run = submit.run\n"
        "submit.run = lambda command, *more: run([*command[:-1], 'program.py'], *more)\n"
        "from ackstream.__main__ import main; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, "submit", "correlate", "--conf", "spark.of.option=2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_CONF_DIR": str(tmp_path / "user")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert "found 1 2 3" in finished.stdout.splitlines(), finished.stderr


def test_a_lake_on_a_disk_without_hard_links_is_refused_with_the_key_to_set(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = {f"lake.{name}": str(tmp_path / name) for name in ("path", "checkpoints")}
    check_disks(spark, lake)
    refused = OSError(errno.EPERM, "Operation not permitted")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=refused))
    with pytest.raises(
        StartError, match=rf"^lake.path = {tmp_path}/path is on a disk without hard links \(Operation not"
    ):
        check_disks(spark, lake)
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=[None, refused]))
    with pytest.raises(StartError, match=r"Set lake.checkpoints to a disk that has them \(ext4, XFS, APFS, NFS"):
        check_disks(spark, lake)


@pytest.mark.parametrize(
    ("key", "value"), [("spark.sql.session.timeZone", "Asia/Tokyo"), ("spark.sql.caseSensitive", "TRUE")]
)
def test_an_entry_on_which_stored_values_would_depend_is_refused_before_spark_starts(key: str, value: str) -> None:
    settings = Settings.model_validate({"spark": {"conf": {key: value}}})
    with pytest.raises(StartError, match=f"spark.conf has {key} = {value}: remove it. Stored values need {FIXED[key]}"):
        session(settings, "x")


@pytest.mark.parametrize(
    ("environment", "given", "ours"),
    [("", "-Dmine=1", [COLLECTOR]), ("", "-XX:+UseSerialGC", []), ("-XX:+UseG1GC", "-Dmine=1", [])],
)
def test_a_collector_of_the_user_takes_the_place_of_ours(
    monkeypatch: pytest.MonkeyPatch, environment: str, given: str, ours: list[str]
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", environment)
    options = quick_start(given).split()
    assert [option for option in options if option == COLLECTOR] == ours
    # of two collectors Java would use none
    subprocess.run(["java", *options, "-version"], check=True)
