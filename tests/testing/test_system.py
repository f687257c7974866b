from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client import (
    Ack,
    After,
    ClosedError,
    Command,
    DittoError,
    NoReplyExpectedError,
    Requester,
    Responder,
    Response,
    Retry,
    Subscriber,
    subscription,
)
from ackstream.errors import BadParameterError
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.protocol.ditto.labels import BUILT_IN
from ackstream.settings import Correlate, Settings
from ackstream.testing import RequestSystem
from tests.conformance.runner import Case, check

if TYPE_CHECKING:
    from ackstream.client import Reply, Signal

CASES = Path(__file__).parent.parent / "vectors" / "cases"
THING = "org.acme:lamp"
COMMAND = Command.modify_attribute(THING, "power", 1)


def _aggregates() -> list[Case]:
    lines = (CASES / "aggregate.jsonl").read_text("utf-8").splitlines()
    cases = msgspec.json.decode(b"[" + ",".join(lines).encode() + b"]", type=list[Case])
    # to await nothing, or for no time, is not for requests with a reply; built-in labels belong to their issuers
    return [
        case
        for case in cases
        if case.given["requested"] and case.given["timeout"] != "0" and not BUILT_IN.keys() & {*case.given["requested"]}
    ]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in _aggregates()])
def test_a_case_of_the_protocol_has_the_same_answer_here(case: Case) -> None:
    assert check(case) is None, "the library itself"
    system = RequestSystem()
    requester = system.requester()
    identity = case.given["correlation-id"]
    requested = case.given["requested"]
    future = requester.send(COMMAND, acks=requested, timeout=case.given["timeout"], correlation_id=identity)
    for ack in case.given["received"]:
        payload = ack.get("payload", msgspec.UNSET)
        system.acknowledge(identity, ack["label"], ack["status"], thing_id=THING, payload=payload)
    shown = _shown(future.result())
    assert shown == {name: case.expect[name] for name in ("status", "missing", "successful", "failed")}


def _shown(reply: Reply) -> dict[str, Any]:
    acks = reply.acks
    return {
        "status": reply.status,
        "missing": list(reply.missing),
        "successful": [label for label, ack in acks.items() if is_success(ack.status)],
        "failed": [label for label, ack in acks.items() if not is_success(ack.status)],
    }


def test_importing_it_loads_neither_spark_nor_what_reads_tables() -> None:
    code = "import sys, ackstream.testing; print(*{'pyspark', 'pandas', 'pyarrow', 'deltalake'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_its_clients_are_those_of_the_sdk() -> None:
    system = RequestSystem()
    assert isinstance(system.requester(), Requester)
    assert isinstance(system.responder(handler=print), Responder)
    assert isinstance(system.subscriber(handler=print, subscriptions=[]), Subscriber)


@given(
    delays=st.dictionaries(st.sampled_from(["a:a", "b:b", "c:c"]), st.integers(0, 4_000), min_size=1),
    cuts=st.lists(st.integers(0, 4_000), max_size=6),
)
def test_a_reply_does_not_depend_on_the_steps_in_which_time_passes(delays: dict[str, int], cuts: list[int]) -> None:
    replies = []
    for steps in ([], sorted(cuts)):
        system = RequestSystem()
        for label, delay in delays.items():
            system.responder(handler=lambda _, delay=delay: After(delay / 1000, Ack(204)), labels=[label])
        future = system.requester().send(COMMAND, acks=delays, timeout="2s", correlation_id="c")
        for cut in steps:
            system.advance(max(0, cut - system.now) / 1000)
        replies.append((future.result().data, system.records["replies"][0].timestamp))
        late = {label for label, delay in delays.items() if delay > 2_000}
        assert set(future.result().missing) == late
    assert replies[0] == replies[1]


def test_an_answer_at_the_deadline_counts_and_one_after_it_is_late() -> None:
    system = RequestSystem()
    requester = system.requester()
    first, second = (requester.send(COMMAND, acks=["a:a"], timeout="1s", correlation_id=name) for name in ("x", "y"))
    system.advance(1)
    system.acknowledge("x", "a:a", thing_id=THING)
    assert first.done()
    system.advance(0.001)
    system.acknowledge("y", "a:a", thing_id=THING)
    assert (first.result().status, second.result().status) == (200, 408)
    assert [ack.disposition for entry in system.ledger for ack in entry.acks or ()] == ["accepted", "late"]


def test_an_acknowledgement_may_be_read_before_its_request() -> None:
    system = RequestSystem()
    system.acknowledge("early", "a:a", 204, thing_id=THING)
    system.advance(1)
    assert system.requester().request(COMMAND, acks=["a:a"], correlation_id="early").status == 204


def test_a_live_command_is_responded_to() -> None:
    def respond(signal: Signal) -> Response:
        return Response(200, signal.value + 1)

    system = RequestSystem()
    responder = system.responder(handler=respond, labels=["live-response"])
    reply = system.requester().request(Command.modify_attribute(THING, "power", 1, channel="live"))
    assert (reply.value, reply.completed_by) == (2, "response")
    assert (responder.statistics.handled, responder.statistics.answers) == (1, 1)
    responder.close()
    silent = system.requester().request(Command.modify_attribute(THING, "power", 1, channel="live"), timeout="3s")
    assert silent.completed_by == "timeout"


def test_the_twin_answers_and_keeps_things() -> None:
    system = RequestSystem(twin=True)
    requester, acks = system.requester(), ["twin-persisted", "search-persisted"]
    assert requester.request(COMMAND).status == 404
    assert requester.request(Command.create_thing(THING), acks=acks).ok
    assert requester.request(COMMAND).status == 201
    assert requester.request(Command.retrieve(THING, "/attributes")).value == {"power": 1}
    assert system.things.keys() == {THING}
    assert [json.loads(record.value or b"")["path"] for record in system.records["events"]] == [
        "/",
        "/attributes/power",
    ]


def test_a_subscriber_acknowledges_weakly_what_it_does_not_want() -> None:
    system = RequestSystem(twin=True)
    seen: list[str] = []
    wanted = [subscription("events", filter='eq(resource:path,"/attributes/power")')]
    subscriber = system.subscriber(
        handler=lambda signal: seen.append(signal.path), subscriptions=wanted, labels=["a:a"]
    )
    requester = system.requester()
    created = requester.request(Command.create_thing(THING), acks=["a:a"])
    changed = requester.request(COMMAND, acks=["a:a"])
    assert (created.acks["a:a"].weak, changed.acks["a:a"].weak, seen) == (True, False, ["/attributes/power"])
    assert (subscriber.statistics.weak, subscriber.statistics.handled) == (1, 1)


def test_a_handler_may_send_requests_itself() -> None:
    system = RequestSystem()
    requester = system.requester()

    def relay(signal: Signal) -> Ack | None:
        if signal.value == 1:
            inner = requester.request(Command.modify_attribute(THING, "power", 2), acks=["a:a"], timeout="5s")
            return Ack(204, inner.status)
        return None

    system.responder(handler=relay, labels=["a:a"])
    reply = requester.request(COMMAND, acks=["a:a"], timeout="20s")
    assert (reply.acks["a:a"].status, system.now) == (204, 5_001)


def test_the_pauses_of_a_retry_take_no_real_time_and_further_signals_wait_behind_it() -> None:
    system, calls = RequestSystem(), list[tuple[int, int]]()

    def handle(signal: Signal) -> Ack:
        calls.append((system.now, signal.value))
        if signal.value == 1:
            requester.publish(Command.modify_attribute(THING, "power", 2))
            raise ValueError("no")
        return Ack(204)

    system.responder(handler=handle, labels=["a:a"], retry=Retry(3, 60.0, 3_600.0))
    requester = system.requester()
    reply = requester.request(COMMAND, acks=["a:a"], timeout="10m")
    assert (reply.status, reply.acks["a:a"].status) == (500, 500)
    system.advance(0)
    assert calls == [(0, 1), (60_000, 1), (180_000, 1), *[(180_000, 2)] * 3]


def test_requests_end_as_those_of_a_real_requester() -> None:
    system = RequestSystem()
    requester = system.requester()
    stored = requester.publish(COMMAND, correlation_id="p").result()
    assert (stored.topic, stored.partition, stored.offset) == ("signals", 0, 0)
    with pytest.raises(NoReplyExpectedError):
        requester.send(COMMAND, response_required=False)
    cancelled = requester.send(COMMAND, acks=["a:a"])
    assert not cancelled.cancel()
    assert requester.cancel(cancelled.correlation_id)
    assert cancelled.result().status == 499
    left = requester.send(COMMAND, acks=["a:a"], timeout="1h")
    requester.close()
    assert isinstance(left.exception(), ClosedError)
    with pytest.raises(ClosedError):
        requester.send(COMMAND)
    assert not requester.alive


def test_labels_belong_to_one_receiver_and_built_in_ones_to_none() -> None:
    system = RequestSystem()
    system.responder(handler=print, labels=["a:a"])
    for labels, status in ((["a:a"], 409), (["twin-persisted"], 400), (["no label!"], 400)):
        with pytest.raises(DittoError) as refused:
            system.responder(handler=print, labels=labels)
        assert refused.value.status == status


def test_a_handler_may_close_its_receiver_and_is_answered_for() -> None:
    system = RequestSystem()

    def handle(_signal: Any) -> Ack:
        responder.close()
        return Ack()

    responder = system.responder(handler=handle, labels=["a:b"])
    future = system.requester().send(Command.modify_attribute("org.acme:lamp", "x", 1), acks=["a:b"], timeout="5s")
    assert future.result(0).status == 200


def test_a_receiver_that_is_closed_answers_nothing_more_and_its_labels_are_free() -> None:
    system = RequestSystem()
    responder = system.responder(handler=lambda _: After(2, Ack()), labels=["a:b"])
    future = system.requester().send(Command.modify_attribute("org.acme:lamp", "x", 1), acks=["a:b"], timeout="5s")
    responder.close()
    responder.close()
    system.responder(handler=lambda _: None, labels=["a:b"])
    system.advance(10)
    assert future.result().status == 408


def test_what_cannot_be_read_becomes_a_dead_letter_and_is_answered_where_that_is_possible() -> None:
    system = RequestSystem()
    system.feed("signals", None)
    system.feed("acks", b"\xff")
    assert [reason.partition(":")[0] for reason in system.dead_letters] == ["json.invalid"] * 2
    assert [dict(record.headers)["completed-by"] for record in system.records["replies"]] == [b"invalid"]
    large = RequestSystem(Settings(correlate=Correlate(max_value_bytes=100)))
    assert large.requester().request(Command.modify_attribute(THING, "x", "y" * 200)).status == 413


def test_time_does_not_go_back_and_leases_do_not_run() -> None:
    with pytest.raises(BadParameterError, match="does not go back"):
        RequestSystem().advance(-1)
    with pytest.raises(BadParameterError, match="refuse_undeclared"):
        RequestSystem(Settings(correlate=Correlate(refuse_undeclared=True)))
