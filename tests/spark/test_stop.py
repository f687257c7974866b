"""The end of a driver that received a signal while Kafka is away."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyspark import SparkContext

from ackstream.errors import AccessRefusedError, SettingsError, UnreachableError
from ackstream.settings import Kafka
from ackstream.spark import session

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER, REFUSAL, SILENCE = mock.Mock(), AccessRefusedError("no"), UnreachableError("away")


class _EndedError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    "answers",
    [[SILENCE], [ANSWER, ANSWER, SILENCE], [REFUSAL, REFUSAL, SILENCE], [SettingsError("a new certificate"), SILENCE]],
    ids=["silent", "answers-first", "refuses-a-login-first", "cannot-be-asked-first"],
)
def test_after_a_signal_only_a_silent_kafka_ends_the_process_after_its_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answers: Sequence[object]
) -> None:
    done: list[str] = []

    def noted(text: str, *results: object) -> mock.Mock:
        called = mock.Mock(side_effect=results)
        return mock.Mock(side_effect=lambda *_, **__: (done.append(text), called())[1])

    worker = mock.Mock(pid=lambda: -1, destroyForcibly=noted("worker", None))
    own = mock.Mock(pid=os.getpid, destroyForcibly=noted("own process", None))
    jvm = mock.Mock()
    jvm.java.lang.ProcessHandle.current().descendants().toArray = lambda: [own, worker]
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(session, "connect_admin", noted("ask", *answers))
    end = noted("end", _EndedError)
    monkeypatch.setattr(os, "_exit", end)
    stop = mock.Mock(wait=noted("signal", None))
    with pytest.raises(_EndedError):
        session._end_without(Kafka(), stop)
    assert done == ["signal", *["ask"] * len(answers), "worker", "end"]
    end.assert_called_once_with(0)
    assert caplog.messages == ["The program ends without its batch, which the next start repeats: away"]


def test_a_driver_ends_even_if_its_jvm_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(session, "connect_admin", mock.Mock(side_effect=SILENCE))
    monkeypatch.setattr(os, "_exit", mock.Mock(side_effect=_EndedError))
    stop = threading.Event()
    stop.set()
    with pytest.raises(_EndedError):
        session._end_without(Kafka(), stop)
