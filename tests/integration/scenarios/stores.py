"""A real publisher that begins with a store."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from ackstream.client.core.storage import KeptMessage, PublishStore
from ackstream.client.errors import GapError
from tests.conformance.scenarios.observations import AtMost, Counted, Series
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.integration.scenarios.application import Application, outcome
from tests.integration.scenarios.rules import OUTCOMES, Json, client_of, is_silent, now
from tests.integration.scenarios.wire import flush

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.scenarios import Scenario
    from tests.harness.persistence import Message, Persistence, Silence


def observe(persistence: Persistence, scenario: Scenario, silence: Silence, path: Path) -> Json:
    """Start a publisher with a store, of whose messages the service has those that the scenario names."""
    given, when, client = scenario.given, scenario.when, client_of(scenario)
    kept: list[int] = given.get("store_unacked", [])
    discarded = given.get("store_discarded_up_to", kept[0] - 1 if kept else 0)
    logons = [index for index, step in enumerate(when) if step["op"] in ("logon", "reconnect")]
    told = [(index, step) for index, step in enumerate(when) if step["op"] == "server_ack"]
    if is_silent(scenario):
        return _unanswered(persistence, scenario, silence, path, discarded)
    known = next((place["server_last_seq"] for place in (given, *when) if "server_last_seq" in place), discarded)
    outcomes = {step["seq"]: OUTCOMES[step.get("reason", "ok")] for _, step in told}
    _fill(path, client, discarded, {seq: outcomes.get(seq, OUTCOMES["ok"]) for seq in kept})
    for seq in range(1, known + 1):
        persistence.send(client, _copy(seq, outcomes.get(seq, OUTCOMES["ok"])))
    persistence.send(client, flush("known"))
    persistence.wait_for(client, "known")
    later = [step for index, step in told if not logons or index > logons[0]]

    def another_way_is_quicker() -> None:
        for step in later:
            if step.get("reason") == "duplicate":
                persistence.send(client, _copy(step["seq"], OUTCOMES["ok"]))

    app = Application(persistence, client, another_way_is_quicker)
    gap: list[int] = []
    try:
        app.connect(store=path, error_on_gap=given.get("error_on_publish_gap", False))
    except GapError as error:
        gap = list(error.missing)
    for step in later:
        eventually(lambda: app.heard(step), f"the ack {step}")  # noqa: B023
    app.close()
    left = _left(path, client)
    return {
        **_sent(persistence, client),
        "unpersisted_count": Series([len(kept), *app.counts, len(left)]),
        "store_after": left,
        "failed_write_callbacks": [
            {"seq": failed.seq, "reason": failed.reason, "has_payload": failed.value is not None}
            for failed in app.failed
        ],
        "result": "publish_gap_error" if gap else "connected",
        "missing_on_server": gap,
    }


def observe_unknown(persistence: Persistence, scenario: Scenario, path: Path) -> Json:
    """Start a publisher with a store, of which the service knows neither the client nor a message."""
    client = scenario.id
    _fill(path, client, 0, dict.fromkeys(range(1, scenario.given["unacked"] + 1), OUTCOMES["ok"]))
    app = Application(persistence, client)
    app.connect(store=path)
    again = app.publisher.statistics.resent
    app.publisher.publish_flush(PATIENCE_SECONDS)
    app.close()
    seen = _sent(persistence, client)
    copies = seen["topic_copies"]
    return seen | {"event": {"republishing": again}, "duplicates_max": AtMost(copies.total() - len(copies))}


def _unanswered(persistence: Persistence, scenario: Scenario, silence: Silence, path: Path, discarded: int) -> Json:
    """Publish the messages of the store while the service is silent, and leave it silent."""
    client = client_of(scenario)
    _fill(path, client, discarded, {})
    app = Application(persistence, client)
    app.connect(store=path)
    seen: Json = {}
    with silence:
        for _ in scenario.given["store_unacked"]:
            app.publish()
        began = now()
        for step in scenario.when:
            seen |= outcome(lambda step=step: app.publisher.publish_flush(step["timeout_ms"] / 1000), began)  # type: ignore[misc]
        app.close()
    left = _left(path, client)
    return seen | {"store_after": left, "unpersisted_count": len(left)}


def _fill(path: Path, client: str, discarded: int, messages: dict[int, tuple[str, bytes]]) -> None:
    with closing(PublishStore(path, client)) as kept:
        kept.drop(discarded)
        for seq, (subject, value) in messages.items():
            kept.add(seq, KeptMessage(value, [("topic", subject.encode())]))


def _left(path: Path, client: str) -> list[int]:
    with closing(PublishStore(path, client)) as kept:
        return kept.numbers()


def _copy(seq: int, outcome: tuple[str, bytes]) -> Message:
    """Write what a client had sent before, or what came from elsewhere."""
    subject, value = outcome
    return {"seq": seq, "topic": subject, "ack": "none"}, value


def _sent(persistence: Persistence, client: str) -> Json:
    own = [headers for headers, _ in persistence.messages(client) if "command" not in headers]
    own = [headers for headers in own if headers["ack"] == "persisted"]
    return {
        "resent": Counted([int(headers["seq"]) for headers in own]),
        "topic_copies": Counter(str(seq) for seq, reason in persistence.rows(client) if reason is None),
    }
