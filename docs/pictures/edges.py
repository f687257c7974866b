"""Scenarios of connections, subscribers, the gateway and Spark jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from kafka import KafkaProducer

from ackstream.client import (
    Ack,
    Command,
    Requester,
    Responder,
    Subscriber,
    subscription,
)
from ackstream.gateway.access.passwords import hash_password
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.spark.session import quiet_session
from docs.clients import handover
from docs.pictures.drawing import Picture
from docs.pictures.running import SYSTEM, Run
from tests.harness.kafka import committed, records
from tests.harness.waiting import eventually


def connectivity(run: Run) -> Picture:
    """Let a record of another system fail once: its offset is committed after the second attempt."""
    attempts: list[int] = []

    def keep(command: Any) -> Ack:
        attempts.append(503 if not attempts else 204)
        run.note(SYSTEM, "fleet", f"pressure {command.value}")
        return Ack(attempts[-1])

    group = run.settings.kafka.group("ackstream-source-plant")
    with (
        run.program("connect"),
        Responder(run.bootstrap, handler=keep, labels=["fleet:stored"]),
        KafkaProducer(bootstrap_servers=run.bootstrap) as producer,
    ):
        topic = "org.acme/pump-1/things/twin/commands/modify"
        message = {"topic": topic, "path": "/attributes/pressure", "value": 7, "headers": {"correlation-id": "pump-1"}}
        run.note("telemetry", "connect", "pressure 7")
        producer.send("telemetry", json.dumps(message).encode()).get(60)
        eventually(lambda: any(committed(run.settings.kafka, group, "telemetry").values()), "the offset")
        run.note("connect", "telemetry", "offset committed", "good")
        (answer,) = eventually(lambda: records(run.settings.kafka, "answers"), "the answer")
        run.note(
            "connect", "telemetry", f"answer {json.loads(answer.value)['status']}", "good", at=answer.timestamp / 1000
        )
    asked = run.table("signals", 2, path="/attributes/pressure")
    for row in asked:
        run.note("connect", SYSTEM, f"command\n{row['correlation_id']}", at=row["received_at"])
        run.acknowledged(row["correlation_id"], 1, {"fleet:stored": "fleet"})
    for record in records(run.settings.kafka, "replies"):
        if record.key.decode() in {row["correlation_id"] for row in asked}:
            status = dict(record.headers)["status"].decode()
            run.note(
                SYSTEM, "connect", f"reply: {status}", "bad" if status[0] == "5" else "good", at=record.timestamp / 1000
            )
    about = (
        "A record of another system becomes a command, which fails at first. Its offset is committed after the second."
    )
    return run.picture(
        "sequence", "A source that settles after acknowledgements", about, "telemetry", "connect", SYSTEM, "fleet"
    )


def subscribers(run: Run) -> Picture:
    """Let two subscribers acknowledge changes; the filter of one leaves a change out."""

    def seen(lane: str) -> Callable[[Any], None]:
        return lambda event: run.note(SYSTEM, lane, f"event: {event.value}")

    hot = [subscription("events", filter="gt(attributes/temperature,30)")]
    with (
        Subscriber(run.bootstrap, handler=seen("heat"), subscriptions=hot, labels=["heat"]),
        Subscriber(run.bootstrap, handler=seen("audit"), subscriptions=[subscription("events")], labels=["audit"]),
        Requester(run.bootstrap) as requester,
    ):
        requester.request(Command.create_thing("org.acme:oven"), acks=["twin-persisted"])
        run.events.clear()
        acks = ["twin-persisted", "audit", "heat"]
        for value in (35, 20):
            command = Command.modify_attribute("org.acme:oven", "temperature", value)
            run.note("sender", SYSTEM, f"temperature {value}")
            run.replied("sender", requester.request(command, acks=acks, timeout="10s", correlation_id=f"oven-{value}"))
        for value in (35, 20):
            run.acknowledged(f"oven-{value}", 3, {"twin-persisted": SYSTEM, "audit": "audit", "heat": "heat"})
    about = (
        "Two subscribers acknowledge a change above 30 degrees. For the one below it, the filtering one answers weakly."
    )
    return run.picture("sequence", "Two labels, one with a filter", about, "sender", SYSTEM, "audit", "heat")


def gateway(run: Run) -> Picture:
    """Change a thing over HTTP, and wait for the twin and for a subscriber."""
    labels = {"twin-persisted": SYSTEM, "lamp:switched": "lamp"}

    def switch(event: Any) -> None:
        run.note(SYSTEM, "lamp", f"event: {json.dumps(event.value)}")

    wanted = [subscription("events", namespaces=["org.acme"])]
    with (
        Subscriber(run.bootstrap, handler=switch, subscriptions=wanted, labels=["lamp:switched"]),
        run.program("gateway") as url,
    ):
        thing = f"{url}/api/2/things/org.acme:lamp"
        httpx.put(thing, json={}, timeout=60).raise_for_status()
        run.events.clear()
        run.note("curl", "gateway", "PUT …/attributes/on")
        response = httpx.put(f"{thing}/attributes/on?requested-acks={','.join(labels)}", json=True, timeout=60)
        run.note("gateway", "curl", f"{response.status_code}: two entries", "good")
    (row,) = run.table("signals", 1, path="/attributes/on")
    run.note("gateway", SYSTEM, "signals", at=row["received_at"])
    run.acknowledged(row["correlation_id"], 2, labels)
    (reply,) = [
        record for record in records(run.settings.kafka, "replies") if record.key.decode() == row["correlation_id"]
    ]
    run.note(SYSTEM, "gateway", "replies", "good", at=reply.timestamp / 1000)
    about = "An HTTP request becomes a command, and gets its response when the twin and the lamp have acknowledged it."
    return run.picture("sequence", "An HTTP request until its response", about, "curl", "gateway", SYSTEM, "lamp")


def gateway_operate(run: Run) -> Picture:
    """Send requests that a gateway with users refuses or allows, and read its audit."""
    access = [
        {"subjects": ["user:ada"], "things": ["org.acme:*"], "path": "/attributes", "grant": ["READ", "WRITE"]},
        {"subjects": ["user:setup"], "grant": ["READ", "WRITE"]},
    ]
    users = {"ada": hash_password("ada's"), "setup": hash_password("setup's")}
    own = {"ACKSTREAM_GATEWAY_USERS": json.dumps(users), "ACKSTREAM_GATEWAY_ACCESS": json.dumps(access)}
    tries = {
        "attributes/on": [None, ("ada", "wrong"), ("ada", "ada's")],
        "features": [("ada", "ada's")],
    }
    with run.program("gateway", **own) as url:
        thing = f"{url}/api/2/things/org.acme:guarded"
        httpx.put(thing, json={}, auth=("setup", "setup's"), timeout=60).raise_for_status()
        for path, logins in tries.items():
            for login in logins:
                who = "no login" if login is None else f"ada, {'a wrong' if login[1] == 'wrong' else 'her'} password"
                run.note("client", "gateway", f"PUT …/{path}\n{who}")
                status = httpx.put(f"{thing}/{path}", json={}, auth=login, timeout=60).status_code
                run.note("gateway", "client", str(status), "good" if is_success(status) else "bad")
        # the rows of this gateway alone
        (refused,) = run.table("audit", 1, status=403)
        for row in run.table("audit", 5, query_id=refused["query_id"]):
            if row["subject"] != "user:setup":
                verdict = "allowed" if row["allowed"] else f"refused, {row['status']}"
                text = f"{row['event']} of {row['subject'] or 'an unknown client'}\n{verdict}"
                run.note("gateway", "audit", text, "good" if row["allowed"] else "bad", at=row["received_at"])
    about = (
        "Four requests to a gateway with users: what the client gets, and the rows that the table audit has of them."
    )
    return run.picture("sequence", "Four requests in the audit", about, "client", "gateway", "audit")


def spark_jobs(run: Run) -> Picture:
    """Hand a table over: one of two jobs loads it in time, and the outcome names the other one."""
    settings, name = str(run.directory / "ackstream.toml"), "sales-30"
    places = [str(run.directory / each) for each in (name, "copy", "loading")]
    labels = ("stock:loaded", "report:loaded")
    with quiet_session(run.settings, "pictures") as spark, ThreadPoolExecutor() as pool:
        ask = pool.submit(handover.write, spark, settings, "tables", places[0], name, "30s", *labels)
        (asked,) = run.table("signals", 1, correlation_id=name)
        run.note("sales", SYSTEM, f"{name}, within 30 s:\n" + "\n".join(labels), at=asked["received_at"])
        run.note(SYSTEM, "stock", f"{name}: load it")
        handover.load(spark, settings, "tables", labels[0], *places[1:])
        run.acknowledged(name, 1, {labels[0]: "stock"})
        outcome = ask.result()
        (decided,) = run.table("outcomes", 1, correlation_id=name)
        text = f"outcome: {outcome.status}, {outcome.completed_by}\nmissing: {', '.join(outcome.missing)}"
        run.note(SYSTEM, "sales", text, "bad", at=decided["decided_at"])
    about = "A Spark job writes a table and asks two others to load it. One has loaded it, the outcome names the other."
    return run.picture("sequence", "A table is handed over", about, "sales", SYSTEM, "stock", "report")
