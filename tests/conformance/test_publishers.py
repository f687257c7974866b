"""Scenarios of publishers beyond the given ones: other numbers, orders and combinations, decided by reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scenarios import Scenario, Uncovered, check

Json = dict[str, Any]


def _publishes(*outcomes: str, start: int = 1, every: int = 10) -> list[Json]:
    return [
        {"t_ms": index * every, "op": "publish", "seq": start + index, "cid": f"c{start + index}", "outcome": outcome}
        for index, outcome in enumerate(outcomes)
    ]


def _persisted(seq: int, reason: str | None = None, **more: Any) -> Json:
    if reason is None:
        return {"ack_type": "persisted", "status": "success", "seq": seq, "cid": None} | more
    return {"ack_type": "persisted", "status": "failure", "seq": seq, "reason": reason, "cid": None} | more


LOGGED: Json = {"client": "p", "txlog": True, "request": ["persisted"], "ack_conflation_ms": 1000}
SILENT: Json = {"server": "silent"}
ORDERED = "acks_in_order"
NO, OK = "not entitled", "ok"

AMPS: dict[str, tuple[Json, list[Json], Json]] = {
    "what is behind a gap waits": (
        LOGGED,
        [step for step in _publishes(OK, OK, OK, NO) if step["seq"] != 3],
        {ORDERED: [_persisted(2, at_ms=1000)]},
    ),
    "a gap that is filled late": (
        LOGGED,
        [*_publishes(OK, start=2), {"t_ms": 1500, "op": "publish", "seq": 1, "outcome": OK}],
        {ORDERED: [_persisted(2, at_ms=2000)]},
    ),
    "a number that comes again is a duplicate, stored once": (
        LOGGED,
        [*_publishes(OK, OK), {"t_ms": 1200, "op": "publish", "seq": 2, "outcome": OK}],
        {ORDERED: [_persisted(2), _persisted(2, "duplicate", by_ms=2000)], "topic_copies": {"1": 1, "2": 1}},
    ),
    "a duplicate is in the topic once": (
        LOGGED,
        _publishes("duplicate", OK),
        {ORDERED: [_persisted(1, "duplicate"), _persisted(2)], "topic_copies": {"1": 1, "2": 1}},
    ),
    "numbers begin after what the client has dropped": (
        LOGGED | {"store_discarded_up_to": 3},
        _publishes(OK, start=5),
        {ORDERED: [], "unpersisted_count": 1},
    ),
    "numbers of a client that the server knows begin after its last": (
        LOGGED | {"server_last_seq": 6},
        _publishes(OK, OK, start=7),
        {ORDERED: [_persisted(8)]},
    ),
    "without a log every message has its own ack at once, failures too": (
        LOGGED | {"txlog": False},
        _publishes(OK, NO),
        {
            ORDERED: [_persisted(1, cid="c1", at_ms=0), _persisted(2, NO, cid="c2", at_ms=10)],
            "durability": "weak",
            "cid_present": True,
        },
    ),
    "an error of processing is told in processed and persisted alike": (
        LOGGED | {"request": ["received", "processed", "persisted", "completed"]},
        _publishes(NO),
        {
            ORDERED: [
                {"ack_type": "received", "status": "success", "cid": "c1"},
                {"ack_type": "processed", "status": "failure", "cid": "c1", "reason": NO},
                _persisted(1, NO),
            ],
            "persisted_has_cid": False,
        },
    ),
    "an error of storing is told in persisted alone": (
        LOGGED | {"request": ["processed", "persisted"]},
        _publishes("tx store failure"),
        {ORDERED: [{"ack_type": "processed", "status": "success"}, _persisted(1, "tx store failure")]},
    ),
    "persisted waits for the slowest sync destination": (
        LOGGED | {"ack_conflation_ms": 0, "sync_destinations": {"A": 300, "B": 500}, "local_persist_ms": 20},
        _publishes(OK),
        {ORDERED: [_persisted(1, at_ms=500)]},
    ),
    "async destinations are not waited for": (
        LOGGED | {"ack_conflation_ms": 0, "async_destinations": {"A": None}},
        _publishes(OK),
        {ORDERED: [_persisted(1, at_ms=0)]},
    ),
    "a failure waits for the messages before it": (
        LOGGED | {"ack_conflation_ms": 0, "sync_destinations": {"A": 300}},
        _publishes(OK, NO),
        {ORDERED: [_persisted(1, at_ms=300), _persisted(2, NO, at_ms=300)]},
    ),
    "a silent sync destination without a downgrade stops all acks, and flush": (
        LOGGED | {"sync_destinations": {"A": None}},
        [*_publishes(OK), {"t_ms": 20, "op": "flush", "cid": "f", "request": ["processed", "persisted"]}],
        {ORDERED: [{"ack_type": "processed", "cid": "f"}]},
    ),
    "a downgrade counts the age of the oldest message": (
        LOGGED | {"sync_destinations": {"A": None}, "downgrade": {"every_ms": 5000, "age_ms": 7000}},
        [{"t_ms": 3500, "op": "publish", "seq": 1, "outcome": OK}],
        {ORDERED: [_persisted(1, at_ms=15000)], "server_log_has": ["A is async"]},
    ),
    "both conflation intervals add, and lowering one does not help": (
        LOGGED | {"ack_conflation_ms": 100, "downstream_ack_conflation_ms": 1000, "sync_destinations": {"A": 200}},
        _publishes(OK),
        {ORDERED: [_persisted(1, not_before_ms=1000, by_ms=1100)]},
    ),
    "flush tells what it waits for and nothing behind it": (
        LOGGED,
        [
            *_publishes(OK, NO),
            {"t_ms": 40, "op": "flush", "cid": "f", "request": ["persisted"]},
            {"t_ms": 50, "op": "publish", "seq": 3, "outcome": OK},
        ],
        {
            ORDERED: [
                _persisted(1),
                _persisted(2, NO),
                {"ack_type": "persisted", "cid": "f", "seq": None, "at_ms": 40},
                _persisted(3, at_ms=1000),
            ]
        },
    ),
    "a publisher's own store follows the acks, and its flush": (
        LOGGED,
        [*_publishes(OK, NO, OK), {"t_ms": 30, "op": "publish_flush", "timeout_ms": 2000}],
        {
            "error": None,
            "at_ms": 1000,
            "store_after": [],
            "failed_write_callbacks": [{"seq": 2, "reason": NO, "has_payload": True}],
            "unpersisted_count": 0,
        },
    ),
    "a logon that the server leaves behind sends all it lacks": (
        {"store_unacked": [7, 8, 9], "server_last_seq": 7},
        [{"op": "logon"}, {"op": "server_ack", "seq": 8, "status": "failure", "reason": NO}],
        {"resent": [8, 9], "store_after": [9], "unpersisted_count": [3, 2, 1], "connected": True},
    ),
    "a gap is let through where it is no error": (
        {"store_discarded_up_to": 10, "error_on_publish_gap": False},
        [{"op": "logon", "server_last_seq": 7}],
        {"result": "connected", "missing_on_server": [8, 9, 10], "connected": True},
    ),
    "the second answer to a logon decides": (
        {},
        [
            {"op": "logon", "cid": "l"},
            {"op": "server_ack", "ack_type": "processed", "cid": "l", "status": "retry", "user_id": "u"},
            {"op": "server_ack", "ack_type": "processed", "cid": "l", "status": "failure", "reason": "auth failure"},
        ],
        {"client_sends": ["logon with u"], "connected": False, "sdk_error": "AuthFailure"},
    ),
    "a logon nobody answers": (
        SILENT | {"store_unacked": [1]},
        [{"t_ms": 5, "op": "logon", "cid": "l", "timeout_ms": 300}],
        {"error": "timed_out", "at_ms": 305, "client_sends": [], "store_after": [1], "connected": False},
    ),
    "a query nobody answers is cancelled": (
        SILENT,
        [{"t_ms": 5, "op": "sow", "cid": "q", "timeout_ms": 100}],
        {"error": "timed_out", "at_ms": 105, "client_sends": ["unsubscribe q"]},
    ),
    "a replay from now is complete at once": (
        {"log_end": 9},
        [
            {"op": "subscribe", "cid": "s", "bookmark": "NOW", "request": ["completed"]},
            {"op": "publish_range", "from": 10, "to": 11},
        ],
        {"stream": ["ack:completed", "10..11"]},
    ),
    "a replay stops where it should, also when that comes later": (
        {"log_end": 9},
        [
            {"op": "subscribe", "cid": "s", "range": "(7:11]", "request": ["processed", "completed"]},
            {"op": "publish_range", "from": 10, "to": 15},
        ],
        {"stream": ["ack:processed", "8..11", "ack:completed"]},
    ),
    "an outstanding message holds the resume point": (
        {"received": [3, 7, 9], "discarded": [3, 9], "log_end": 12},
        [{"op": "tick_persisted"}, {"op": "restart", "sub_id": "same"}],
        {"resume_after": 3, "delivered_to_app": [7, 10, 11, 12], "suppressed": [9]},
    ),
    "under another subscription id nothing is known": (
        {"received": [1, 2, 3], "discarded": [1, 2]},
        [{"op": "restart", "sub_id": "other"}],
        {"resume_after": 0, "delivered_to_app": [1, 2, 3], "suppressed": []},
    ),
    "counting alone returns nothing": (
        {"records": 10, "matching": 4},
        [{"op": "sow", "cid": "q", "top_n": 0, "request": ["stats", "processed", "completed"]}],
        {
            "stats": {"topic_matches": 10, "matches": 4, "records_returned": 0},
            ORDERED: [{"ack_type": "processed"}, {"ack_type": "completed"}, {"ack_type": "stats"}],
        },
    ),
    "deletes and publishes share the numbers": (
        LOGGED | {"records": 3, "matching": 1},
        [*_publishes(OK), {"op": "sow_delete", "cid": "d", "seq": 2, "filter": "/x", "request": ["persisted"]}],
        {ORDERED: [_persisted(2)], "persisted": {"seq": 2, "cid": None}},
    ),
    "a type that a command cannot answer": (
        {},
        [{"op": "sow", "cid": "q", "request": ["persisted", "completed"]}],
        {ORDERED: [{"ack_type": "processed", "status": "failure", "cid": "q", "reason": "not supported"}]},
    ),
    "completed of a subscription without a bookmark never comes": (
        {"log_end": 5},
        [{"op": "subscribe", "cid": "s", "filter": "/x > 1", "request": ["processed", "completed"]}],
        {ORDERED: [{"ack_type": "processed", "status": "success", "cid": "s"}], "sdk_error": None},
    ),
}  # fmt: skip


def _messages(*times: int) -> list[Json]:
    return [{"t_ms": time, "op": "publish", "id": index} for index, time in enumerate(times, start=1)]


SOLACE: dict[str, tuple[Json, list[Json], Json]] = {
    "a third of the window is a whole number": (
        {"pub_window": 8},
        _messages(0, 1, 2),
        {"broker_acks": [{"up_to": 2, "at_ms": 1}, {"up_to": 3, "not_before_ms": 1002, "by_ms": 1002}]},
    ),
    "an ack in a hurry is about all before it": (
        {"pub_window": 255},
        [*_messages(0, 1), {"t_ms": 2, "op": "publish", "id": 3, "ack_immediately": True}],
        {
            "broker_acks": [{"up_to": 3, "at_ms": 2}],
            "app_notifications": [1, 2, 3],
            "without_flag": {"broker_acks": [{"up_to": 3, "at_ms": 1000}]},
        },
    ),
    "what waits is sent when there is room": (
        {"pub_window": 2, "lose_broker_acks": 1},
        _messages(0, 0, 0),
        {"blocked": [], "transmissions_at_ms": [0, 0, 0], "app_notifications": [1, 2, 3]},
    ),
    "a silent broker is asked again": (
        {"pub_window": 2, "broker": "silent", "pub_ack_time_ms": 500},
        [*_messages(0, 10), {"t_ms": 20, "op": "publish_await_ack", "id": 3, "timeout_ms": 1000}],
        {
            "in_flight": 2,
            "blocked": [3],
            "error": "timeout",
            "at_ms": 1020,
            "outcome": "unknown",
            "transmissions_at_ms": [0, 10, 500, 510, 1000, 1010],
        },
    ),
    "windowed notifications with a lost ack": (
        {"pub_window": 3, "ack_event_mode": "WINDOWED", "lose_broker_acks": 1},
        _messages(0, 10),
        {"broker_acks": [{"up_to": 1}, {"up_to": 2}], "app_notifications": [2], "queue_copies": 1},
    ),
    "an awaited message that is acknowledged": (
        {"pub_window": 3},
        [{"t_ms": 7, "op": "publish_await_ack", "id": 1, "timeout_ms": 3000}],
        {"error": None, "outcome": "acknowledged", "at_ms": 7},
    ),
    "an awaited message that is refused": (
        {"queues": {"a": "ok", "b": "disabled"}, "reject": "always"},
        [{"t_ms": 7, "op": "publish_await_ack", "id": 1, "timeout_ms": 3000}],
        {
            "error": "rejected",
            "nack": [{"id": 1, "reason": "QUEUE_SHUTDOWN"}],
            "stored": {"a": 0, "b": 0},
            "never": {"nack": [], "stored": {"a": 1, "b": 0}, "error": None},
        },
    ),
    "a lost flow gives the messages back": (
        {"unacked": 4, "on_unknown_flow": "DISCONNECT"},
        [{"op": "reconnect", "flow": "unknown"}],
        {"resent": 0, "duplicates_max": 0, "connected": False, "in_flight": 0},
    ),
    "a flow that is known stores nothing twice": (
        {"unacked": 4, "on_unknown_flow": "AUTO_RETRY"},
        [{"op": "reconnect", "flow": "known"}],
        {"resent": [1, 2, 3, 4], "duplicates_max": 0, "event": None, "queue_copies": 1},
    ),
    "a window of nothing": ({"pub_window": 0}, _messages(0), {"error": "invalid_window"}),
}


@pytest.mark.parametrize("name", AMPS)
def test_amps(name: str) -> None:
    given, when, expect = AMPS[name]
    assert check(Scenario("AMPS-x", given, when, expect)) is None


@pytest.mark.parametrize("name", SOLACE)
def test_solace(name: str) -> None:
    given, when, expect = SOLACE[name]
    assert check(Scenario("SOL-x", given, when, expect)) is None


@pytest.mark.parametrize(
    ("protocol", "given"),
    [
        ("SOL", {"broker": "moody"}),
        ("SOL", {"queues": {"q": "haunted"}}),
        ("SOL", {"reject": "sometimes"}),
        ("AMPS", {"server": "moody"}),
    ],
)
def test_a_value_that_is_not_known_makes_a_scenario_uncovered(protocol: str, given: Json) -> None:
    assert isinstance(check(Scenario(f"{protocol}-x", given, [], {"error": None})), Uncovered)
