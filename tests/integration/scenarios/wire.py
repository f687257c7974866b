"""Commands of a client as records on the wire."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from tests.conformance.scenarios.observations import AT, Lines
from tests.integration.scenarios.rules import OUTCOMES, Json, client_of, now, sleep_until

if TYPE_CHECKING:
    from tests.conformance.scenarios import Scenario
    from tests.harness.persistence import Message, Persistence


def observe(persistence: Persistence, scenario: Scenario) -> Json:
    """Write a client's commands as records; those within one interval of its merged acks come in one batch."""
    given, client = scenario.given, client_of(scenario)
    interval = given["ack_conflation_ms"]
    persistence.send(client, ({"command": "logon", "cid": "logon", "ack-conflation": f"{interval}ms"}, b""))
    logon = persistence.wait_for(client, "logon")
    own, began = {"logon"}, now()
    for number, steps in groupby(scenario.when, lambda step: step["t_ms"] // max(1, interval)):
        group = [step | {"log": given.get("txlog", True)} for step in steps]
        sleep_until(began + group[-1]["t_ms"])
        barrier = f"barrier-{number}"
        own.add(barrier)
        persistence.send(client, *(_command(step, given["request"]) for step in group), flush(barrier))
        persistence.wait_for(client, barrier)
    acks = [(ack, at - began) for ack, at in persistence.acks(client) if ack.cid not in own]
    merged = [ack for ack, _ in acks if ack.ack_type == "persisted" and ack.seq is not None]
    seen = {
        "acks_in_order": [msgspec.structs.asdict(ack) | {AT: at} for ack, at in acks],
        "cid_present": any(ack.cid is not None for ack, _ in acks),
        "persisted_has_cid": any(ack.cid is not None for ack in merged),
        "effective_conflation_ms_reported": logon.effective_conflation_ms is not None,
        "durability": "strong" if persistence.rows(client) else "weak",
        "server_log_has": Lines([reason for _, reason in persistence.rows(client) if reason is not None]),
    }
    return seen | {AT: acks[-1][1]} if acks else seen


def _command(step: Json, asked: list[str]) -> Message:
    headers: Json = {word: step[word] for word in ("cid", "seq") if word in step}
    headers["ack"] = ",".join(step.get("request", asked)) or "none"
    if step["op"] != "publish":
        return headers | {"command": step["op"]}, b""
    subject, value = OUTCOMES[step["outcome"] if step["log"] else "unlogged"]
    return headers | {"topic": subject}, value


def flush(cid: str) -> Message:
    return {"command": "flush", "cid": cid, "ack": "persisted"}, b""
