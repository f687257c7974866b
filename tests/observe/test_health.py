"""When a process works, and when it is of use, by the signs that its parts give."""

from __future__ import annotations

import json

import pytest

from ackstream.observe.health import Health


def _health() -> Health:
    health = Health()
    health.expect("The loop", 10, vital=True)
    health.expect("Kafka", 5)
    return health


@pytest.mark.parametrize(
    ("loop", "kafka", "live", "ready"),
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
    loop: float | None, kafka: float | None, live: list[str], ready: list[str]
) -> None:
    health = _health()
    for name, at in (("The loop", loop), ("Kafka", kafka)):
        if at is not None:
            health.beat(name, at)
    assert list(health.live(100).problems) == live
    assert list(health.ready(100).problems) == ready


def test_a_process_of_which_nothing_is_known_yet_is_live_and_not_ready() -> None:
    assert Health().live(0).ok
    assert Health().ready(0).problems == ("It is starting.",)


def test_a_part_that_has_ended_in_order_is_not_missed_and_one_that_is_not_expected_gives_no_sign() -> None:
    health = _health()
    health.beat("The loop", 100)
    health.forget("Kafka")
    health.beat("Kafka", 100)
    assert health.ready(100).ok


def test_a_sign_is_expected_for_the_time_of_a_block() -> None:
    health = _health()
    for name in ("The loop", "Kafka"):
        health.beat(name, 100)
    with health.expecting("The job", 10):
        assert health.ready(100).problems == ("The job: no sign yet.",)
    assert health.ready(100).ok


def test_the_answer_to_a_probe_has_its_status_and_what_is_wrong() -> None:
    health = _health()
    health.beat("The loop", 100)
    status, body = health.ready(100).answer()
    assert (status, json.loads(body)) == (503, {"status": "failing", "problems": ["Kafka: no sign yet."]})
    status, body = health.live(100).answer()
    assert (status, json.loads(body)) == (200, {"status": "ok", "problems": []})
