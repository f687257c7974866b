"""Scenarios of requests and their acknowledgements."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer

from ackstream.aio import AsyncRequester
from ackstream.client import (
    Ack,
    After,
    Command,
    Requester,
    Responder,
)
from ackstream.testing import RequestSystem
from docs.pictures.drawing import Picture
from docs.pictures.running import SYSTEM, Run
from tests.harness.kafka import records
from tests.harness.waiting import eventually


def orders(run: Run) -> Picture:
    """Ask about an order that one party confirms, the other one too late."""

    def pack(_: Any) -> Ack:
        run.note(SYSTEM, "warehouse", "order-16")
        return Ack(200, {"parcel": 7})

    options = {"topics": ["orders"], "labels": ["warehouse:packed"], "handler": pack}
    with Responder(run.bootstrap, **options), Requester(run.bootstrap) as requester:
        run.note("shop", SYSTEM, "order-16, within 10 s:\nwarehouse:packed\nbank:paid")
        reply = requester.request_record(
            "orders",
            b'{"article": 7}',
            key=b"order-16",
            acks=["warehouse:packed", "bank:paid"],
            timeout="10s",
            correlation_id="order-16",
        )
        run.replied("shop", reply)
        headers = [("correlation-id", b"order-16"), ("label", b"bank:paid")]
        with KafkaProducer(bootstrap_servers=run.bootstrap) as producer:
            producer.send("acks", key=b"order-16", headers=headers).get(10)
        run.acknowledged("order-16", 2, {"warehouse:packed": "warehouse", "bank:paid": "bank"})
    about = "A shop asks two parties to confirm an order. The warehouse confirms, the bank does not: the shop gets 424."
    return run.picture("sequence", "One of two parties confirms an order", about, "shop", SYSTEM, "warehouse", "bank")


def send_a_command(run: Run) -> Picture:
    """Send three commands: confirmed, refused, not answered."""
    answers = {"on": Ack(200, {"watts": 7}), "full": Ack(409, "busy"), "off": None}

    def switch(signal: Any) -> Ack | None:
        run.note(SYSTEM, "lamp", f"power {signal.value}")
        if signal.value == "off":
            run.note("lamp", "", "no answer", "bad")
        return answers[signal.value]

    with Responder(run.bootstrap, handler=switch, labels=["lamp:switched"]), Requester(run.bootstrap) as requester:
        for value in answers:
            command = Command.modify_attribute("org.acme:lamp-7", "/power", value)
            run.note("sender", SYSTEM, f"power {value}, within 3 s")
            identity = f"power-{value}"
            reply = requester.request(command, acks=["lamp:switched"], timeout="3s", correlation_id=identity)
            run.replied("sender", reply)
        for value, count in (("on", 1), ("full", 1)):
            run.acknowledged(f"power-{value}", count, {"lamp:switched": "lamp"})
    about = "A sender sends three commands: the lamp confirms the first, refuses the second, and ignores the third."
    return run.picture("sequence", "Three commands, three replies", about, "sender", SYSTEM, "lamp")


def progress(run: Run) -> Picture:
    """Follow a request of two labels as they are acknowledged."""

    def answer(lane: str, seconds: float) -> Callable[[Any], After]:
        def handle(_: Any) -> After:
            run.note(SYSTEM, lane, "power 1")
            return After(seconds, Ack())

        return handle

    async def follow() -> None:
        async with AsyncRequester(run.bootstrap) as requester:
            command = Command.modify_attribute("org.acme:lamp-8", "/power", 1)
            run.note("coroutine", SYSTEM, "stream:\nlamp:switched\nfleet:done")
            labels = ["lamp:switched", "fleet:done"]
            async for reply in requester.stream(command, acks=labels, timeout="10s", correlation_id="progress-1"):
                if reply.is_update:
                    shown = ", ".join(f"{label} {ack.status}" for label, ack in reply.acks.items())
                    run.note(SYSTEM, "coroutine", f"update:\n{shown}")
                else:
                    run.replied("coroutine", reply)

    with (
        Responder(run.bootstrap, handler=answer("lamp", 0.5), labels=["lamp:switched"]),
        Responder(run.bootstrap, handler=answer("fleet", 3.0), labels=["fleet:done"]),
    ):
        asyncio.run(follow())
        run.acknowledged("progress-1", 2, {"lamp:switched": "lamp", "fleet:done": "fleet"})
    about = (
        "A coroutine gets an update when the first of two labels is acknowledged, and the reply after the second one."
    )
    return run.picture("sequence", "Progress as it comes", about, "coroutine", SYSTEM, "lamp", "fleet")


def other_languages(run: Run) -> Picture:
    """Let two programs without the SDK exchange records, and show the headers of these."""
    program = [sys.executable, "docs/clients/orders.py", run.bootstrap, ""]
    confirming = [*program, "confirm", "orders", "responder-carrier", "carrier:booked", "1"]
    with subprocess.Popen(confirming, stdout=subprocess.PIPE):  # noqa: S603 - our own program
        asking = [*program, "ask", "orders", "order-18", '{"article": 7}', "carrier:booked"]
        subprocess.run(asking, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own program
    ways = {"orders": ("client", SYSTEM), "acks": ("party", SYSTEM), "replies": (SYSTEM, "client")}
    shown = ("correlation-id", "requested-acks", "timeout", "label", "status", "completed-by")
    (asked,) = [record for record in records(run.settings.kafka, "orders") if record.key == b"order-18"]
    identity = dict(asked.headers)["correlation-id"]
    for topic, (source, target) in ways.items():
        for record in records(run.settings.kafka, topic):
            headers = {name: value.decode() for name, value in record.headers}
            if headers.get("correlation-id") == identity.decode():
                headers["correlation-id"] = headers["correlation-id"][:8] + "…"
                text = "\n".join([f"topic {topic}", *(f"{name}: {headers[name]}" for name in shown if name in headers)])
                run.note(source, target, text, at=record.timestamp / 1000)
                if topic == "orders":
                    run.note(SYSTEM, "party", "the same record", at=record.timestamp / 1000)
    about = "Record headers of a request, of its confirmation and of its reply, exchanged by programs without the SDK."
    return run.picture("sequence", "Headers of three records", about, "client", SYSTEM, "party")


def testing(run: Run) -> Picture:
    """Test two handlers in memory: one answers in time, the other one too late."""
    system = RequestSystem()

    def note(source: str, target: str, text: str, tone: Any = "plain") -> None:
        run.note(source, target, text, tone, at=system.now / 1000)

    def answer(label: str, seconds: float) -> Callable[[Any], After]:
        def handle(_: Any) -> After:
            note("RequestSystem", label, f"After({seconds:g}, Ack())")
            return After(seconds, Ack())

        return handle

    system.responder(handler=answer("fleet:done", 2), labels=["fleet:done"])
    system.responder(handler=answer("fleet:checked", 7), labels=["fleet:checked"])
    acks = ["fleet:done", "fleet:checked"]
    note("test", "RequestSystem", 'send(…, timeout="5s")')
    future = system.requester().send(Command.modify_attribute("org.acme:lamp", "power", 2), acks=acks, timeout="5s")
    for step in (2, 3, 0.001, 2):
        note("test", "test", f"advance({step:g})")
        system.advance(step)
        if future.done() and step == 0.001:  # noqa: PLR2004 - the step that passes the deadline
            note(
                "RequestSystem",
                "test",
                f"{future.result().status}\nmissing: {', '.join(future.result().missing)}",
                "bad",
            )
    for ack in [ack for entry in system.ledger for ack in entry.acks or ()]:
        late = ack.disposition != "accepted"
        text = f"{ack.status}" + (", late" if late else "")
        run.note(str(ack.label), "RequestSystem", text, "faint" if late else "good", at=ack.received_at / 1000)
    about = "A test moves the time of a system in memory: the answer after 2 s counts, the one after 7 s is late."
    return run.picture("sequence", "Time passes where the test advances it", about, "test", "RequestSystem", *acks)


def request_life(run: Run) -> Picture:
    """Extend a request by progress, and amend one after its timeout."""
    amended: list[Any] = []

    def pay(order: Any) -> After:
        run.note(SYSTEM, "bank", order.correlation_id)
        if order.correlation_id == "slow":
            order.working(extend="6s")
        return After(5.0, Ack())

    with (
        Responder(run.bootstrap, topics=["orders"], labels=["bank:paid"], handler=pay),
        Requester(run.bootstrap, on_amended=amended.append) as requester,
    ):
        for identity, headers in (("slow", {}), ("amended", {"amend": "true"})):
            run.note("shop", SYSTEM, f"{identity}: bank:paid within 3 s")
            options = {"acks": ["bank:paid"], "timeout": "3s", "correlation_id": identity, "headers": headers}
            run.replied("shop", requester.request_record("orders", b"{}", **options))
        (second,) = eventually(lambda: amended, "the second reply")
        run.replied("shop", second)
        run.acknowledged("slow", 2, {"bank:paid": "bank"})
        run.acknowledged("amended", 1, {"bank:paid": "bank"})
    about = "A party that reports progress gets more time. A late answer amends a request that has the header amend."
    return run.picture("sequence", "Progress and a second reply", about, "shop", SYSTEM, "bank")
