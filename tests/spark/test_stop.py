"""The end of a driver that received a signal while Kafka is away."""

from __future__ import annotations

import os
import threading
from unittest import mock

import pytest
from pyspark import SparkContext

from ackstream.settings import Kafka
from ackstream.spark import session


class _EndedError(Exception):
    """Stands for the end of the process."""


def test_after_a_signal_a_silent_kafka_ends_the_process_after_its_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def noted(text: str, result: object = None) -> mock.Mock:
        called = mock.Mock(side_effect=[result])
        return mock.Mock(side_effect=lambda *_, **__: (done.append(text), called())[1])

    worker = mock.Mock(pid=lambda: -1, destroyForcibly=noted("worker"))
    own = mock.Mock(pid=os.getpid, destroyForcibly=noted("own process"))
    jvm = mock.Mock()
    jvm.java.lang.ProcessHandle.current().descendants().toArray = lambda: [own, worker]
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(session, "wait_for_silence", noted("silence"))
    end = noted("end", _EndedError)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(_EndedError):
        session._end_without(Kafka(bootstrap="a:1"), mock.Mock(wait=noted("signal")))
    assert done == ["signal", "silence", "worker", "end"]
    end.assert_called_once_with(0)
    told = "The program ends without its batch, which the next start repeats: no answer from a:1"
    assert caplog.messages == [told]


def test_a_driver_ends_even_if_its_jvm_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(session, "wait_for_silence", lambda _: None)
    monkeypatch.setattr(os, "_exit", mock.Mock(side_effect=_EndedError))
    stop = threading.Event()
    stop.set()
    with pytest.raises(_EndedError):
        session._end_without(Kafka(), stop)
