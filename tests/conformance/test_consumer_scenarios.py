"""Scenarios with other numbers, orders and combinations than the published ones; what is expected was reasoned out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scenarios import Scenario, check

EXPLICIT: dict[str, Any] = {"ack_kind": "APPLICATION_EXPLICIT"}


def _write(*numbers: int, at: int = 0) -> list[Any]:
    return [{"op": "write", "sn": number, "t_ms": at} for number in numbers]


def _ack(number: int, at: int, reader: str = "R1", **more: Any) -> dict[str, Any]:
    return {"op": "acknowledge_sample", "sn": number, "t_ms": at, "reader": reader, **more}


def _at_reader(op: str, at: int, number: int | None = None, reader: str = "R1") -> dict[str, Any]:
    return {"op": op, "t_ms": at, "reader": reader} | ({} if number is None else {"sn": number})


def _wait(most: int, at: int = 0) -> dict[str, Any]:
    return {"op": "wait_for_acknowledgments", "max_ms": most, "t_ms": at}


RTI: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "three lost app acks": (
        EXPLICIT | {"app_ack_period_ms": 2_000, "lose_app_ack": [1, 2, 3]},
        [_ack(1, 0)],
        {"app_ack_sent_at_ms": [0, 2_000, 4_000, 6_000], "conf": 1, "callbacks": [{"sn": 1, "t_ms": 6_000}]},
    ),
    "a new acknowledgement brings the lost one along": (
        EXPLICIT | {"lose_app_ack": [1]},
        [_ack(1, 0), _ack(2, 3_000)],
        {
            "app_acks": [{"count": 1}, {"t_ms": 3_000, "intervals": [[1, 1], [2, 2]], "flags": ["0x0100", "0x0000"]}],
            "callbacks": [{"sn": 1}, {"sn": 2}],
            "not_at_ms": [5_000, 8_000],
        },
    ),
    "two lost confirmations": (
        EXPLICIT | {"lose_conf": [1, 2]},
        [_ack(1, 0)],
        {"app_ack_received": 3, "conf_sent": 3, "conf_counts": [1, 2, 3], "callbacks": [{"sn": 1, "t_ms": 0}]},
    ),
    "count and period together": (
        EXPLICIT | {"samples_per_app_ack": 3, "app_ack_period_ms": 1_000},
        [_ack(1, 0), _ack(2, 10), _ack(3, 20), _ack(4, 30), _ack(7, 1_100)],
        {
            "app_acks": [{"t_ms": 20, "intervals": [[1, 3]]}, {"by_ms": 1_030}, {"by_ms": 2_100}],
            "unacked": [5, 6],
            "contiguous_watermark": 4,
        },
    ),
    "a response that is kept long enough": (
        EXPLICIT | {"min_app_ack_response_keep_ms": 6_000, "lose_app_ack": [1]},
        [_ack(1, 0, response=[9])],
        {"callbacks": [{"sn": 1, "response": [9], "valid": True, "t_ms": 5_000}]},
    ),
    "a response that is too long": (
        EXPLICIT | {"max_app_ack_response_length": 2},
        [_ack(1, 0, response=[9, 9, 9]), _ack(2, 1, response=[9, 9])],
        {"error": "bad_parameter", "callbacks": [{"sn": 2}], "app_acked": {"1": False, "2": True}},
    ),
    "a sample that was not taken": (
        EXPLICIT,
        [*_write(1, 2), _at_reader("take", 5, 1), _ack(2, 10), _ack(1, 20)],
        {"error": "precondition_not_met", "app_acks": [{"t_ms": 20, "intervals": [[1, 1]]}], "unacked": [2]},
    ),
    "a sample that was never written": (
        EXPLICIT,
        [*_write(1), _ack(7, 10)],
        {"error": "precondition_not_met", "app_acks": [], "retained": [1]},
    ),
    "keep last two": (
        EXPLICIT | {"history": "KEEP_LAST", "depth": 2},
        [*_write(1, 2, 3), *_write(4, at=30)],
        {
            "auto_acked": [{"sn": 1, "why": "replaced"}, {"sn": 2, "why": "replaced", "t_ms": 30}],
            "retained": [3, 4],
            "with_KEEP_ALL_unacked": [1, 2, 3, 4],
        },
    ),
    "read before it was replaced": (
        EXPLICIT | {"history": "KEEP_LAST", "depth": 1},
        [*_write(1), _at_reader("read", 5, 1), *_write(2, at=30), *_write(3, at=40)],
        {"auto_acked": [{"sn": 2, "why": "replaced", "t_ms": 40}], "retained": [1, 3]},
    ),
    "an automatic reader that reads, and takes what it has read": (
        {"ack_kind": "APPLICATION_AUTO"},
        [*_write(1, 2), _at_reader("read", 5, 1), _at_reader("take", 20, 2)],
        {"app_acks": [{"t_ms": 5, "intervals": [[1, 1]]}, {"t_ms": 20, "count": 2}], "retained": []},
    ),
    "all that was read or taken": (
        EXPLICIT,
        [
            *_write(1, 2, 3),
            _at_reader("take", 5, 1),
            _at_reader("read", 6, 2),
            {"op": "acknowledge_all", "t_ms": 10, "reader": "R1"},
        ],
        {"app_acks": [{"t_ms": 10, "intervals": [[1, 2]]}], "unacked": [3]},
    ),
    "the filter excludes all but one": (
        EXPLICIT | {"filter_excludes": [1, 3]},
        [*_write(1, 2, 3), _ack(2, 40), _wait(1_000)],
        {
            "wait": "OK",
            "at_ms": 40,
            "auto_acked": [{"sn": 1, "why": "filtered"}, {"sn": 3, "why": "filtered"}],
            "without_filter_excludes_retained": [1, 3],
        },
    ),
    "loans that come back in another order": (
        {"ack_kind": "APPLICATION_AUTO"},
        [
            *_write(1, 2),
            _at_reader("take_loan", 5, 1),
            _at_reader("take_loan", 6, 2),
            _at_reader("return_loan", 50, 2),
            _wait(100),
        ],
        {"app_acks": [{"t_ms": 50, "intervals": [[2, 2]]}], "wait": "TIMEOUT", "at_ms": 100, "retained": [1]},
    ),
    "protocol acknowledgements of two readers": (
        {"ack_kind": "PROTOCOL", "readers": ["A", "B"]},
        [*_write(1), _at_reader("cached", 30, 1, "A"), _at_reader("cached", 70, 1, "B"), _wait(100)],
        {"wait": "OK", "at_ms": 70, "callbacks": [], "app_acks": []},
    ),
    "a role short of its quorum": (
        {"required": {"Logger": 2, "Processor": 1}},
        [
            *_write(1, 2),
            _ack(1, 10, "L1", role="Logger"),
            _ack(1, 20, "L2", role="Logger"),
            _ack(1, 30, "P1", role="Processor"),
            _ack(2, 40, "L1", role="Logger"),
            _wait(500),
        ],
        {
            "wait": "TIMEOUT",
            "fully_acked": False,
            "quorum": {"Logger": [1, 2], "Processor": [0, 1]},
            "app_acked": {"1": True, "2": False},
            "retained": [2],
            "watermark": 1,
        },
    ),
    "a role that nobody fills": (
        {"required": {"Logger": 1}},
        [*_write(1), _wait(500)],
        {"wait": "TIMEOUT", "at_ms": 500, "fully_acked": False, "quorum": {"Logger": [0, 1]}},
    ),
    "a plain reader beside a role": (
        {"required": {"Logger": 1}, "readers": ["A"]},
        [*_write(1), _ack(1, 10, "L1", role="Logger"), _at_reader("reader_lost", 60, reader="A"), _wait(500)],
        {"wait": "OK", "at_ms": 60, "fully_acked_at_ms": 60},
    ),
    "room comes while a write waits": (
        EXPLICIT | {"max_samples": 2, "max_blocking_ms": 500},
        [*_write(1, 2), *_write(3, at=10), _ack(1, 200)],
        {"write_3": "OK", "at_ms": 200, "retained": [2, 3]},
    ),
    "more is acknowledged than there is room for": (
        EXPLICIT | {"max_samples": 1, "max_blocking_ms": 50},
        [_ack(1, 10), _ack(2, 20), _ack(3, 90)],
        {"write_2": "OK", "write_3": "OK", "retained": []},
    ),
    "after a timed-out write the next one finds room": (
        EXPLICIT | {"max_samples": 1, "max_blocking_ms": 50},
        [*_write(1), *_write(2, at=10), _ack(1, 100), *_write(3, at=200)],
        {"write_2": "TIMEOUT", "write_3": "OK", "retained": [3]},
    ),
    "acknowledged and not sent when the reader crashed": (
        EXPLICIT | {"durable_reader": True, "samples_per_app_ack": 5},
        [*_write(1, 2, 3), _ack(1, 10), _at_reader("crash", 20), _at_reader("restart", 100)],
        {"redelivered": [1, 2, 3], "callbacks": []},
    ),
    "acknowledged behind a hole before the crash": (
        EXPLICIT | {"durable_reader": True},
        [
            *_write(1, 2, 3),
            _ack(2, 10),
            _at_reader("crash", 20),
            _at_reader("restart", 100),
            _ack(1, 110),
            _ack(3, 120),
        ],
        {"redelivered": [1, 3], "callbacks": [{"sn": 2}, {"sn": 1}, {"sn": 3}], "retained": [], "watermark": 3},
    ),
    "a volatile reader": (
        EXPLICIT,
        [*_write(1, 2), _at_reader("crash", 20), _at_reader("restart", 100)],
        {"redelivered": [], "retained": []},
    ),
    "watermarks in another order": (
        EXPLICIT,
        [_ack(3, 1), _ack(1, 2), _ack(2, 3), _ack(5, 4)],
        {"watermark": [{"after": "3", "value": 0}, {"after": "1", "value": 1}, {"after": "2,5", "value": 3}]},
    ),
    "a best-effort writer of readers that acknowledge": (
        EXPLICIT | {"reliability": "BEST_EFFORT"},
        [*_write(1), _wait(5_000, at=70)],
        {"wait": "OK", "at_ms": 70, "retained": [], "with_RELIABLE_wait": "TIMEOUT"},
    ),
    "an impossible reader": ({"samples_per_app_ack": 0}, [{"op": "create_reader"}], {"error": "inconsistent_qos"}),
    "a possible reader": ({"max_app_ack_response_length": 32_768}, [{"op": "create_reader"}], {"error": None}),
}


def _receive(number: int, at: int) -> dict[str, Any]:
    return {"op": "receive", "id": number, "t_ms": at}


def _settle(number: int, outcome: str, **more: Any) -> dict[str, Any]:
    return {"op": "settle", "id": number, "outcome": outcome, **more}


DISCONNECT, REBIND = {"op": "disconnect"}, {"op": "rebind"}

SOL: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "one failure more than allowed and no dead message queue": (
        {"max_redelivery": 1, "dmq": False},
        [_settle(1, "FAILED")] * 2,
        {"deliveries": 2, "dmq": [], "queue": [], "deleted": [1], "without_dmq": "deleted"},
    ),
    "failures and a lost consumer count together": (
        {"max_redelivery": 1, "queue": [1, 2, 3]},
        [_settle(1, "FAILED"), _settle(2, "ACCEPTED"), DISCONNECT, REBIND],
        {"deliveries": {"1": 2, "2": 1, "3": 2}, "dmq": [1], "queue": [3], "redelivered": [1, 3], "acked": [2]},
    ),
    "delays by three": (
        {"initial_ms": 500, "multiplier_pct": 300, "max_ms": 10_000},
        [{"op": "settle_repeat", "id": 1, "outcome": "FAILED", "n": 5}],
        {"delays_ms": [500, 1_500, 4_500, 10_000, 10_000], "deliveries": 6},
    ),
    "two places become free": (
        {"max_delivered_unacked": 3, "queue": [1, 2, 3, 4, 5, 6]},
        [{"op": "ack", "id": 2}, {"op": "ack", "id": 1}],
        {"delivered_before": [1, 2, 3], "delivered_after": [1, 2, 3, 4, 5]},
    ),
    "the queue's time is less": (
        {"respect_ttl": True, "max_ttl_s": 5, "msg_ttl_s": 10, "dmq_eligible": False},
        [{"op": "enqueue", "id": 1, "t_ms": 100}],
        {"leaves_at_ms": 5_100, "dmq": [], "deleted": [1], "without_respect_ttl_queue": [1]},
    ),
    "times are not respected": (
        {"respect_ttl": False, "msg_ttl_s": 10},
        [{"op": "enqueue", "id": 1, "t_ms": 0}],
        {"leaves_at_ms": None, "queue": [1]},
    ),
    "an automatic consumer that raised": (
        {"ack_mode": "AUTO"},
        [{"op": "callback_raise", "id": 1}, {"op": "callback_ok", "id": 2}, DISCONNECT, REBIND],
        {"acked": [2], "redelivered": [1], "redelivered_flag": True, "queue": [1]},
    ),
    "an automatic consumer's own call": (
        {"ack_mode": "AUTO"},
        [_receive(1, 0), {"op": "ack", "id": 1}, _settle(1, "FAILED")],
        {"acked": [], "queue": [1], "error": "outcome_not_enabled"},
    ),
    "an outcome that is declared beside one that is not": (
        {"required_outcomes": ["ACCEPTED", "FAILED"]},
        [_settle(1, "REJECTED"), _settle(1, "FAILED")],
        {"error": "outcome_not_enabled", "queue": [1], "deliveries": 2},
    ),
    "a consumer that comes late": (
        {},
        [{"op": "enqueue", "id": 1, "t_ms": 0}, {"op": "bind", "t_ms": 9_000}, {"op": "ack", "id": 1, "t_ms": 9_001}],
        {"delivered_before": [], "delivered_after": [1], "acked": [1], "queue": [], "redelivered": []},
    ),
}


def _deliver(to: str, at: int = 0, message: str = "m1") -> dict[str, Any]:
    return {"op": "deliver", "msg": message, "to": to, "t_ms": at}


LOAD = {"A": [1, 2], "B": [0, 4], "C": [0, 10]}

AMPS: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "a lease that begins later": (
        {"lease_ms": 1_000, "consumers": ["A", "B"]},
        [_deliver("A", 50)],
        {"redeliver_not_before_ms": 1_050, "redeliver_on_disconnect": "immediately", "state": "leased"},
    ),
    "no lease": (
        {"consumers": ["A"]},
        [_deliver("A")],
        {"redeliver_not_before_ms": None, "redeliver_on_disconnect": "immediately"},
    ),
    "a connection that drops": (
        {"lease_ms": 60_000},
        [_deliver("A"), {"op": "disconnect", "who": "A", "t_ms": 5_000}],
        {"redeliver_not_before_ms": 5_000, "state": "available"},
    ),
    "asking nothing": (
        {"queue_max_per_sub": 3},
        [{"op": "subscribe", "cid": "q"}, {"op": "enqueue", "n": 5}, {"op": "ack", "n": 2}],
        {"effective_max_backlog": 1, "delivered_before_first_ack": 1, "deliveries": 2},
    ),
    "asking less": (
        {"queue_max_per_sub": 30},
        [{"op": "subscribe", "cid": "q", "max_backlog": 4}, {"op": "enqueue", "n": 5}],
        {"effective_max_backlog": 4, "delivered_before_first_ack": 4, "deliveries": 4},
    ),
    "batches of three": (
        {"ack_batch": 3, "ack_timeout_ms": 500},
        [{"op": "ack", "n": 7, "t_ms": 10}],
        {
            "sow_delete": [
                {"bookmarks": 3, "immediate": True, "at_ms": 10},
                {"bookmarks": 3, "by_ms": 10},
                {"bookmarks": 1, "not_before_ms": 510, "by_ms": 510, "immediate": False},
            ]
        },
    ),
    "an automatic consumer": (
        {"auto_ack": True, "ack_batch": 10},
        [
            _deliver("A"),
            _deliver("A", message="m2"),
            {"op": "handler_returns", "msg": "m1"},
            {"op": "handler_raises", "msg": "m2"},
        ],
        {
            "sow_delete": [{"bookmarks": 1, "option": "cancel", "immediate": True}, {"bookmarks": 1, "option": None}],
            "cancel_count": 1,
        },
    ),
    "an automatic consumer's own calls": (
        {"auto_ack": True},
        [_deliver("A"), {"op": "ack", "msg": "m1"}, {"op": "cancel", "msg": "m1"}],
        {"sow_delete": [], "state": "leased", "error": "outcome_not_enabled"},
    ),
    "three cancels": (
        {"max_cancels": 3, "dead_letter": "Failed"},
        [{"op": "cancel", "msg": "m1"}] * 3,
        {"expired_after_cancel": 3, "dead_letter": ["m1"], "state": "expired", "cancel_count": 3},
    ),
    "two of three cancels": (
        {"max_cancels": 3, "dead_letter": "Failed"},
        [{"op": "cancel", "msg": "m1"}] * 2,
        {"expired_after_cancel": None, "dead_letter": [], "cancel_count": 2, "state": "available"},
    ),
    "one delivery": (
        {"max_deliveries": 1},
        [_deliver("A"), {"op": "unsubscribe", "who": "A"}, _deliver("B")],
        {"deliveries": 1, "state": "expired", "dead_letter": []},
    ),
    "sublet": (
        {"leasing": "sublet"},
        [_deliver("A"), {"op": "ack", "msg": "m1", "by": "B"}],
        {"state": "removed", "if_strict": "leased"},
    ),
    "strict, the holder": (
        {"leasing": "strict"},
        [_deliver("A"), {"op": "ack", "msg": "m1", "by": "A"}],
        {"state": "removed"},
    ),
    "proportional": (
        {"fairness": "proportional", "load": LOAD},
        [{"op": "enqueue", "n": 4}],
        {"delivered_to": ["B", "C", "C", "C"], "with_fast_delivered_to": ["A", "B", "B", "B"]},
    ),
    "in turn": (
        {"fairness": "round-robin", "load": {"A": [0, 2], "B": [0, 1], "C": [0, 2]}},
        [{"op": "enqueue", "n": 6}],
        {"delivered_to": ["A", "B", "C", "A", "C"]},
    ),
    "nobody has room": (
        {"fairness": "fast", "load": {"A": [2, 2]}},
        [{"op": "enqueue", "n": 1}],
        {"delivered_to": None},
    ),
    "a batch without a timeout": ({"ack_batch": 2, "ack_timeout_ms": 0}, [], {"error": "inconsistent_qos"}),
}


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(Scenario(f"{prefix}-X", *entry), id=f"{prefix}: {name}")
        for prefix, entries in (("RTI", RTI), ("SOL", SOL), ("AMPS", AMPS))
        for name, entry in entries.items()
    ],
)
def test_scenario(scenario: Scenario) -> None:
    assert check(scenario) is None


@pytest.mark.parametrize(
    ("prefix", "given_", "when", "expect"),
    [
        ("RTI", EXPLICIT, [_ack(1, 0)], {"callbacks": []}),
        ("RTI", EXPLICIT, [_ack(1, 0)], {"app_ack_sent_at_ms": [0, 5_000]}),
        ("RTI", EXPLICIT, [_ack(1, 0)], {"not_at_ms": [0]}),
        ("RTI", EXPLICIT, [_ack(1, 0), _ack(3, 1)], {"watermark": [{"after": "3", "value": 3}]}),
        ("SOL", {"queue": [1]}, [{"op": "ack", "id": 1}], {"queue": [1]}),
        ("SOL", {}, [_settle(1, "FAILED")], {"deliveries": 1}),
        ("AMPS", {"leasing": "strict"}, [_deliver("A")], {"state": "removed"}),
    ],
)
def test_a_wrong_expectation_fails(prefix: str, given_: Any, when: Any, expect: Any) -> None:
    assert check(Scenario(f"{prefix}-X", given_, when, expect)) is not None
