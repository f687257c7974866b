from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import java_gateway

from ackstream.errors import LocalError
from ackstream.settings import Settings
from ackstream.spark import session
from ackstream.spark.session import quiet_session

# ends when its input does, as the JVM
OBEDIENT = "import sys; print('noise', flush=True); sys.stdin.read()"
STUBBORN = "import time; print('noise', flush=True); time.sleep(600)"


class PySpark:
    """In place of PySpark: starts a process as PySpark does, and can fail afterwards."""

    def __init__(self) -> None:
        self.program = OBEDIENT
        self.error: BaseException | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = self.awaited = False

    def session(self, *_arguments: Any, **_options: Any) -> Any:
        self.process = java_gateway.Popen([sys.executable, "-c", self.program], stdin=subprocess.PIPE)
        if self.awaited:
            self.process.wait()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(
            sparkContext=SimpleNamespace(
                _accumulatorServer=SimpleNamespace(), _gateway=SimpleNamespace(proc=self.process)
            ),
            stop=self.stop,
        )

    def stop(self) -> None:
        self.stopped = True

    @property
    def code(self) -> int | None:
        assert self.process is not None
        return self.process.poll()


@pytest.fixture
def pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PySpark:
    monkeypatch.chdir(tmp_path)
    pyspark = PySpark()
    monkeypatch.setattr(session, "session", pyspark.session)
    monkeypatch.setattr(session, "SparkContext", SimpleNamespace(_gateway=None))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(getActiveSession=lambda: None))
    monkeypatch.setattr(session.jvm_jars, "resolve", lambda *_: [])
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "")
    return pyspark


def test_spark_is_stopped_and_its_jvm_ends(pyspark: PySpark, capfd: pytest.CaptureFixture[str]):
    with quiet_session(Settings(), "test"):
        assert pyspark.code is None
    assert pyspark.stopped
    assert pyspark.code == 0
    out, err = capfd.readouterr()
    log = Path(".ackstream/logs/spark-test.log").absolute()
    # without a terminal, too: the start takes long
    assert (out, err) == ("", f"Starting Spark for test; its log is {log}.\n")
    assert Path(".ackstream/logs/spark-test.log").read_text() == "noise\n"


def test_a_jvm_that_does_not_end_is_killed(pyspark: PySpark, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "END_SECONDS", 0.1)
    pyspark.program = STUBBORN
    with quiet_session(Settings(), "test"):
        pass
    assert pyspark.code == -9


def fail(error: BaseException) -> None:
    with quiet_session(Settings(), "test"):
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_after_an_error_the_jvm_is_killed_at_once(pyspark: PySpark, error: BaseException):
    pyspark.program = STUBBORN
    with pytest.raises(type(error)):
        fail(error)
    assert pyspark.code == -9
    assert not pyspark.stopped


def test_a_jvm_whose_start_was_interrupted_is_not_forgotten(pyspark: PySpark):
    pyspark.error = KeyboardInterrupt()
    pyspark.program = STUBBORN
    with pytest.raises(KeyboardInterrupt), quiet_session(Settings(), "test"):
        pass
    assert pyspark.code == -9


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("noise", "[JAVA_GATEWAY_EXITED] …"),
        (
            """Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.Main
Caused by: java.net.UnknownHostException: no-such-host: Name not known
\tat java.base/…
""",
            "java.net.UnknownHostException: no-such-host: Name not known",
        ),
    ],
)
def test_a_spark_that_does_not_start_is_a_sentence_with_its_cause(pyspark: PySpark, printed: str, why: str):
    pyspark.program = f"print({printed!r}, flush=True)"
    pyspark.error = RuntimeError("[JAVA_GATEWAY_EXITED] …")
    pyspark.awaited = True
    sentence = f"Spark did not start ({why}): correct what its log "
    with pytest.raises(LocalError, match=re.escape(sentence)), quiet_session(Settings(), "test"):
        pass


def test_a_refusal_before_spark_starts_keeps_its_sentence(pyspark: PySpark):
    pyspark.error = LocalError("No Java was found.")
    with pytest.raises(LocalError, match=r"^No Java was found\.$"), quiet_session(Settings(), "test"):
        pass


def test_a_session_that_is_there_is_left_alone(pyspark: PySpark, monkeypatch: pytest.MonkeyPatch):
    there = object()
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(getActiveSession=lambda: there))
    with quiet_session(Settings(), "test") as found:
        assert found is there
    assert pyspark.process is None


def test_pyspark_gets_its_own_popen_back(pyspark: PySpark):
    before = java_gateway.Popen
    with quiet_session(Settings(), "test"):
        assert pyspark.process is not None
    assert java_gateway.Popen is before
