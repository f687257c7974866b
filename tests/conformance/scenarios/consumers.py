"""Scenarios of Solace consumers: transport and application acknowledgements, settlement, redelivery.

What a scenario leaves out is implied: a consumer is bound from the start unless its first step binds it or no step is a
consumer's; where nothing is enqueued, a message is in the queue when a step names it; where ``required_outcomes`` is
not given all outcomes are declared; dead messages have a queue. A step without a time that settles a message whose
redelivery is delayed comes when it is delivered again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ackstream.client.queue_session import after_handler, takes_call
from ackstream.errors import DeliveryError
from ackstream.settings.queues import Backoff, QueueRules, solace
from tests.conformance.models.microbatch import BatchAcks
from tests.conformance.scenarios import variations
from tests.conformance.scenarios.consumers_system import Endpoint
from tests.conformance.scenarios.scenario import Interpreter, Json, Uncovered
from tests.conformance.scenarios.timeline import PerName, timed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.client.queue_session import AckMode
    from ackstream.protocol.readers import SampleOutcome

MODES: dict[str, AckMode] = {"CLIENT": "client", "AUTO": "auto"}
OUTCOMES: dict[str, SampleOutcome] = {"ACCEPTED": "accepted", "FAILED": "failed", "REJECTED": "rejected"}
BINDS = ("bind", "rebind")
NEUTRAL = (*BINDS, "enqueue", "check", "batch", "commit", "batch_start", "crash")
SECOND = 1_000


def observe(given: Json, when: list[Json]) -> Mapping[str, Any]:
    """Run the steps; see :class:`Interpreter`."""
    return variations.observe(_run, given, when, switches=("dmq", "dmq_eligible", "redelivery_enabled", "respect_ttl"))


def _run(given: Json, when: list[Json]) -> Json:
    if given.get("engine", "") not in ("", "spark-microbatch"):
        raise Uncovered(f"the engine {given['engine']} is not known")
    flow = _Flow(given, when)
    before: list[Any] | None = None
    for at, step in timed(when):
        if before is None:
            before = list(flow.endpoint.delivered)
        flow.take(step, at)
    flow.endpoint.settle_down()
    return flow.observations(before or [])


def _rules(given: Json) -> QueueRules:
    backoff = {
        name: given[word]
        for word, name in (
            ("initial_ms", "initial_ms"),
            ("multiplier_pct", "multiplier_percent"),
            ("max_ms", "max_ms"),
        )
        if word in given
    }
    rules: Json = {"backoff": Backoff(**backoff)} if backoff else {}
    names = {"max_delivered_unacked": "max_backlog", "dmq": "dead_letters", "respect_dmq_eligible": "respect_eligible"}
    rules |= {name: given[word] for word, name in names.items() if word in given}
    rules |= {word: given[word] for word in ("max_redelivery", "redelivery_enabled", "respect_ttl") if word in given}
    return solace(max_ttl_ms=int(given.get("max_ttl_s", 0) * SECOND) if given.get("respect_ttl") else 0, **rules)


class _Flow:
    """The steps of a scenario, on an ideal clock."""

    def __init__(self, given: Json, when: list[Json]) -> None:
        if given.get("ack_mode", "CLIENT") not in MODES:
            raise Uncovered(f"ack_mode {given['ack_mode']} is not known")
        self._given = given
        self._mode = MODES[given.get("ack_mode", "CLIENT")]
        self._listed = "queue" in given or any(step["op"] in ("enqueue", "receive") for step in when)
        self.endpoint = Endpoint(given, _rules(given))
        self._outcomes = [OUTCOMES[word] for word in given.get("required_outcomes", OUTCOMES)]
        self._acked: list[Any] = []
        self._error: str | None = None
        self._batches: BatchAcks[Any] = BatchAcks()
        self._acked_at: str | None = None
        self._crashed_between: list[Any] = []
        for message in given.get("queue", []):
            self.endpoint.enqueue(message)
        # `given` may describe a queue whose consumer has its messages already
        consuming = [step["op"] for step in when if step["op"] not in NEUTRAL or step["op"] in BINDS]
        if ("queue" in given and not consuming) or (consuming and consuming[0] not in BINDS):
            self.endpoint.bind(self._outcomes)

    def take(self, step: Json, at: int) -> None:
        """Take one step."""
        if "t_ms" in step or at > self.endpoint.now:
            self.endpoint.advance(at)
        for _ in range(step.get("n", 1)):
            try:
                self._take(step)
            except DeliveryError as error:
                self._error = self._error or error.code
        self.endpoint.move()

    def _take(self, step: Json) -> None:
        op, message = step["op"], step.get("id")
        if op == "enqueue":
            self.endpoint.enqueue(message)
        elif op == "receive":
            self.endpoint.enqueue(message)
            self.endpoint.move()
        elif op in ("disconnect", "close"):
            self.endpoint.unbind()
        elif op in BINDS:
            self.endpoint.bind(self._outcomes)
        elif op in ("settle", "settle_repeat"):
            self._settle(step, message, OUTCOMES[step["outcome"]])
        elif op == "ack":
            self._settle(step, message, "accepted")
        elif op in ("callback_ok", "callback_raise"):
            outcome = after_handler(self._mode, raised=op == "callback_raise")
            self._reach(step, message)
            if outcome is not None:
                self._settled(message, outcome)
        else:
            self._batch(op, step)

    def _settle(self, step: Json, message: Any, outcome: SampleOutcome) -> None:
        self._reach(step, message)
        if takes_call(self._mode, outcome):
            self._settled(message, outcome)

    def _reach(self, step: Json, message: Any) -> None:
        """Let the consumer have the message, as far as the scenario implies it."""
        if not self._listed:
            self.endpoint.enqueue(message)
        self.endpoint.move()
        if "t_ms" not in step:
            self.endpoint.wait_for(message)

    def _settled(self, message: Any, outcome: SampleOutcome) -> None:
        if self.endpoint.settle(message, outcome) and outcome == "accepted":
            self._acked.append(message)

    def _batch(self, op: str, step: Json) -> None:
        if op == "batch":
            for message in step["msgs"]:
                self.endpoint.enqueue(message)
            self.endpoint.bind(self._outcomes)
            self._batches.read(step["id"], step["msgs"])
            self._crashed_between = self._batches.unacknowledged
        elif op == "commit":
            self._batches.commit(step["id"])
            self._crashed_between = self._batches.unacknowledged
        elif op == "batch_start":
            acknowledged = self._batches.start(step["id"])
            for message in acknowledged:
                self._settled(message, "accepted")
            if acknowledged:
                self._acked_at = f"batch {step['id']} start"
        elif op == "crash":
            self.endpoint.unbind()

    def observations(self, before: list[Any]) -> Json:
        """Return all that can be seen."""
        endpoint = self.endpoint
        leaves = [exit_.at for exit_ in endpoint.queue.exits]
        return {
            "transport_acks": endpoint.transport_acks,
            "broker_sends_at_ms": endpoint.sent_at,
            "callback_count": endpoint.callbacks,
            "queue": endpoint.content,
            "dmq": endpoint.left("dead-letter"),
            "deleted": endpoint.left("discarded"),
            "acked": self._acked,
            "redelivered": list(dict.fromkeys(endpoint.redelivered)),
            "redelivered_flag": bool(endpoint.redelivered),
            "deliveries": PerName(list(endpoint.deliveries.items())),
            "deliveries_min": max(endpoint.deliveries.values(), default=0),
            "delays_ms": endpoint.delays,
            "delivered_before": before,
            "delivered_after": list(endpoint.delivered),
            "leaves_at_ms": leaves[-1] if leaves else None,
            "at_ms": leaves[-1] if leaves else None,
            "state": endpoint.state,
            "acked_at": self._acked_at,
            "crash_between": {"redelivered": self._crashed_between},
            "error": self._error,
        }


INTERPRETER = Interpreter(
    prefix="SOL",
    given=frozenset(
        {
            "ack_mode",
            "dmq",
            "dmq_eligible",
            "engine",
            "initial_ms",
            "lose_transport_ack",
            "max_delivered_unacked",
            "max_ms",
        }
        | {"max_redelivery", "max_ttl_s", "msg_ttl_s", "multiplier_pct", "queue", "redelivery_enabled"}
        | {"required_outcomes", "respect_dmq_eligible", "respect_ttl", "sub_ack_ms", "sub_window", "threshold_pct"}
    ),
    steps={
        "ack": frozenset({"id"}),
        "batch": frozenset({"id", "msgs"}),
        "batch_start": frozenset({"id"}),
        "bind": frozenset(),
        "callback_ok": frozenset({"id"}),
        "callback_raise": frozenset({"id"}),
        "check": frozenset(),
        "close": frozenset(),
        "commit": frozenset({"id"}),
        "crash": frozenset(),
        "disconnect": frozenset(),
        "enqueue": frozenset({"id"}),
        "rebind": frozenset(),
        "receive": frozenset({"id"}),
        "settle": frozenset({"id", "outcome"}),
        "settle_repeat": frozenset({"id", "n", "outcome"}),
    },
    expect=frozenset(
        {"acked", "acked_at", "at_ms", "broker_sends_at_ms", "by_ms", "callback_count", "crash_between", "delays_ms"}
        | {"deleted", "delivered_after", "delivered_before", "deliveries", "deliveries_min", "dmq", "error"}
        | {"leaves_at_ms", "not_before_ms", "queue", "redelivered", "redelivered_flag", "state", "transport_acks"}
    ),
    observe=observe,
    more=re.compile(variations.WORDS),
)
