"""The endpoint of a process, asked over HTTP."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import httpx
import pytest

from ackstream import __version__
from ackstream.errors import LocalError
from ackstream.observe.endpoint import LIVE, READY, Health, serving
from ackstream.observe.metrics import REQUESTS, Figures
from ackstream.settings import Metrics
from tests.harness.ports import free_ports


def _free() -> Metrics:
    (port,) = free_ports(1)
    return Metrics(port=port)


def test_it_shows_what_was_counted_and_who_it_is() -> None:
    figures, settings = Figures(), _free()
    with serving(settings, "correlate", figures, Health()) as port:
        figures.count(REQUESTS, "timeout", "4xx")
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert port == settings.port
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.text.splitlines()
    assert 'ackstream_requests_total{completed_by="timeout",status="4xx"} 1.0' in lines
    assert f'ackstream_info{{program="correlate",version="{__version__}"}} 1.0' in lines
    # where the system tells it
    if Path("/proc/self/stat").exists():
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_probes_are_answered_by_the_health_of_the_process() -> None:
    health = Health()
    health.expect("Kafka", 60)
    with serving(_free(), "x", Figures(), health) as port:
        url = f"http://127.0.0.1:{port}/health"
        assert httpx.get(f"{url}/live").status_code == 200
        waiting = httpx.get(f"{url}/ready")
        health.beat("Kafka", time.monotonic())
        ready = httpx.get(f"{url}/ready")
        assert httpx.get(f"{url}/other").status_code == 404
    assert (waiting.status_code, json.loads(waiting.content)["problems"]) == (503, ["Kafka: no sign yet."])
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "problems": []})


def test_a_client_that_sends_nothing_keeps_no_other_waiting() -> None:
    with serving(_free(), "x", Figures(), Health()) as port, socket.create_connection(("127.0.0.1", port)):
        assert httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200


def test_without_a_port_nothing_listens() -> None:
    with serving(Metrics(), "x", Figures(), Health()) as port:
        assert port == 0


def test_a_port_in_use_is_refused_in_one_sentence_and_is_free_again_afterwards() -> None:
    settings = _free()
    with serving(settings, "x", Figures(), Health()):
        expected = rf"The metrics cannot be served at 127\.0\.0\.1:{settings.port} \(.*\): set metrics\.port "
        with pytest.raises(LocalError, match=expected), serving(settings, "y", Figures(), Health()):
            pass
    with serving(settings, "y", Figures(), Health()) as port:
        assert port == settings.port


def test_the_port_is_free_at_once_after_a_stop_that_leaves_connections_in_time_wait() -> None:
    settings = _free()
    with serving(settings, "x", Figures(), Health()):
        for _ in range(3):
            with socket.create_connection((settings.host, settings.port)) as client:
                client.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
                # the server closes first, so that its side waits
                while client.recv(1_000):
                    pass
    with serving(settings, "x", Figures(), Health()) as port:
        assert port == settings.port


def _health() -> Health:
    health = Health()
    health.expect("The loop", 10, vital=True)
    health.expect("Kafka", 5)
    return health


@pytest.mark.parametrize(
    ("loop", "reached", "live", "ready"),
    [
        # a start may take long
        (None, None, [], ["Kafka: no sign yet.", "The loop: no sign yet."]),
        (100, None, [], ["Kafka: no sign yet."]),
        (100, 100, [], []),
        (90, 95, [], []),
        # a broker that is away is no reason to start again
        (100, 94, [], ["Kafka: no sign for 6 s."]),
        (89, 100, ["The loop: no sign for 11 s."], ["The loop: no sign for 11 s."]),
    ],
)
def test_a_process_is_live_and_ready_by_its_signs(
    loop: float | None, reached: float | None, live: list[str], ready: list[str]
) -> None:
    health = _health()
    for name, at in (("The loop", loop), ("Kafka", reached)):
        if at is not None:
            health.beat(name, at)
    assert list(health.live(100)) == live
    assert list(health.ready(100)) == ready


def test_a_process_of_which_nothing_is_known_yet_is_live_and_not_ready() -> None:
    assert not Health().live(0)
    assert Health().ready(0) == ("It is starting.",)


def test_a_part_that_has_ended_in_order_is_not_missed_and_one_that_is_not_expected_gives_no_sign() -> None:
    health = _health()
    health.beat("The loop", 100)
    health.forget("Kafka")
    health.beat("Kafka", 100)
    assert not health.ready(100)


def test_a_sign_is_expected_for_the_time_of_a_block() -> None:
    health = _health()
    for name in ("The loop", "Kafka"):
        health.beat(name, 100)
    with health.expecting("The job", 10):
        assert health.ready(100) == ("The job: no sign yet.",)
    assert not health.ready(100)


def test_the_answer_to_a_probe_has_its_status_and_what_is_wrong() -> None:
    health = _health()
    health.beat("The loop", 100)
    status, body = health.answer(READY, 100)
    assert (status, json.loads(body)) == (503, {"status": "failing", "problems": ["Kafka: no sign yet."]})
    status, body = health.answer(LIVE, 100)
    assert (status, json.loads(body)) == (200, {"status": "ok", "problems": []})


def test_a_problem_names_the_type_of_its_error_and_the_log_names_the_error(caplog: pytest.LogCaptureFixture) -> None:
    health = _health()
    health.beat("The loop", 100)
    for error in (TimeoutError("b1:9092"), TimeoutError("b2:9092"), PermissionError("no access to b1:9092")):
        health.fail("Kafka", error)
    assert health.ready(100) == ("Kafka: no sign yet (PermissionError).",)
    # each type once
    assert caplog.messages == ["Not ready: Kafka: b1:9092", "Not ready: Kafka: no access to b1:9092"]
    health.beat("Kafka", 100)
    assert not health.ready(100)
    assert health.ready(106) == ("Kafka: no sign for 6 s.",)


def test_the_error_of_a_sign_that_is_not_expected_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    health = Health()
    health.fail("Kafka", TimeoutError("b1:9092"))
    assert health.ready(0) == ("It is starting.",)
    assert not caplog.messages
