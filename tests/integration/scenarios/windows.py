"""A real publisher with a window; brokers that lose their answers, or have nowhere to put a message."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.conformance.scenarios.observations import AT, NOT_BEFORE, Cumulative, Runs
from tests.harness.waiting import eventually
from tests.integration.scenarios.application import NO_RESENDING_SECONDS, Application, outcome
from tests.integration.scenarios.patience import INTERVAL_MS, MERGED_MS
from tests.integration.scenarios.rules import CLOSED, PASSING, REFUSING, RULES, SWALLOWING, Json, now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.protocol.messages import CommandAck
    from tests.conformance.scenarios import Scenario
    from tests.harness.persistence import Persistence, Silence


def observe(get: Callable[[Json], Persistence], scenario: Scenario, silence: Silence) -> Json:
    """Let a publisher with a window publish; a broker that loses its answers has none while it loses them."""
    given, when = scenario.given, scenario.when
    # what must not wait for the interval of merged acks is seen apart from it
    at_once = [NOT_BEFORE not in ack for ack in scenario.expect.get("broker_acks", ())]
    interval = None
    if at_once:
        interval = INTERVAL_MS if all(at_once) else MERGED_MS
    seen = _produce(get(_rules(given)), scenario.id, given, when, silence, interval)
    if "default_profile" in scenario.expect:
        changed = given | {"reject_no_match": False}
        seen["default_profile"] = _produce(get(_rules(changed)), f"{scenario.id}-default", changed, when, silence)
    if "without_flag" in scenario.expect:
        plain = [{word: value for word, value in step.items() if word != "ack_immediately"} for step in when]
        other = _produce(get(_rules(given)), f"{scenario.id}-without", given, plain, silence)
        seen["without_flag"] = other["broker_acks"].values[0]
    if "when_queue_enabled" in scenario.expect:
        changed = given | {"reject": "when-queue-enabled"}
        seen["when_queue_enabled"] = _produce(get(_rules(changed)), f"{scenario.id}-enabled", changed, when, silence)
    return seen


def _rules(given: Json) -> Json:
    queues = given.get("queues", {"q": "ok"})
    if not queues:
        return REFUSING if given.get("reject_no_match") else SWALLOWING
    if "disabled" in queues.values():
        return CLOSED if given["reject"] == "always" else PASSING
    if "full" in queues.values():
        return SWALLOWING if given["reject"] == "never" else REFUSING
    return RULES


def _produce(
    persistence: Persistence,
    client: str,
    given: Json,
    when: list[Json],
    silence: Silence,
    conflation_ms: int | None = None,
) -> Json:
    silent, losses = given.get("broker") == "silent", given.get("lose_broker_acks", 0)
    ack_time = given.get("pub_ack_time_ms", round(NO_RESENDING_SECONDS * 1000))
    app = Application(persistence, client)
    app.connect(
        window=given.get("pub_window", 50),
        block=False,
        windowed=given.get("ack_event_mode") == "WINDOWED",
        ack_timeout=ack_time / 1000,
        conflation_ms=conflation_ms,
    )
    subject = "open" if given.get("queues", True) else "lonely"
    told = Runs if given.get("ack_event_mode") == "WINDOWED" else list
    seen: Json = {}
    with silence if silent or losses else nullcontext():
        began = now()
        for step in when:
            sleep_until(began + step["t_ms"])
            seen |= outcome(lambda step=step: app.take(step, subject), began)  # type: ignore[misc]
        eventually(lambda: len(_transmissions(persistence, client)) > losses, "the message to be sent again")
        in_flight = app.publisher.unpersisted_count
        if silent:
            app.close()
    if not silent:
        # a flush would have the acks sent at once
        eventually(lambda: app.publisher.unpersisted_count == 0, "the acks")
        app.close()
    arrived = min(_transmissions(persistence, client), default=began)
    good = [seq for seq, reason in persistence.rows(client) if reason is None]
    return seen | {
        "broker_acks": Cumulative([{"up_to": ack.seq, AT: at - arrived} for ack, at in app.acks if _is_good(ack)]),
        "app_notifications": told([receipt.seq for receipt in app.receipts]),
        "in_flight": in_flight,
        "blocked": app.blocked,
        # later is late enough, earlier is not
        "transmissions_at_ms": [
            min(at - began, number * ack_time)
            for number, at in enumerate(_transmissions(persistence, client)[: losses + 1])
        ],
        "queue_copies": max(Counter(good).values(), default=0),
        "nack": [{"id": failed.seq, "reason": failed.reason.upper().replace(" ", "_")} for failed in app.failed],
        "stored": dict.fromkeys(given.get("queues", ()), len(good)),
    }


def _transmissions(persistence: Persistence, client: str) -> list[int]:
    return [at for headers, at in persistence.messages(client) if "seq" in headers and "command" not in headers]


def _is_good(ack: CommandAck) -> bool:
    return ack.ack_type == "persisted" and ack.status == "success"
