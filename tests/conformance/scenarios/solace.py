"""Scenarios of Solace consumers: settlement, redelivery, time to live, on the product's queue.

What a scenario leaves out is implied: a consumer is bound from the start unless its first step binds it or no step is a
consumer's; where nothing is enqueued, a message is in the queue when a step names it; where ``required_outcomes`` is
not given all outcomes are declared; dead messages have a queue. A step without a time that settles a message whose
redelivery is delayed comes when it is delivered again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ackstream.client.queues.queued_messages import AckMode, after_handler, takes_call
from ackstream.errors import DeliveryError
from tests.conformance.scenarios.observations import PerName
from tests.conformance.scenarios.scenario import (
    VARIATION,
    Interpreter,
    Json,
    Uncovered,
    observe_variations,
    timed,
)
from tests.jobs.queues.recording import RecordingQueue
from tests.jobs.queues.rules import backoff, solace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.jobs.queues.records import Event
    from ackstream.protocol.dispositions import MessageDisposition
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings.jobs import QueueSettings

MODES: dict[str, AckMode] = {"CLIENT": "client", "AUTO": "auto"}
OUTCOMES: dict[str, SampleOutcome] = {"ACCEPTED": "accepted", "FAILED": "failed", "REJECTED": "rejected"}
STATES = {"dead-letter": "dmq", "discarded": "deleted", "settled": "acked"}
BINDS = ("bind", "rebind")
NEUTRAL = (*BINDS, "enqueue", "check")
CONSUMER = "consumer"
SECOND = 1_000


def observe(given: Json, when: list[Json]) -> Mapping[str, Any]:
    """Run the steps; see :class:`Interpreter`."""
    return observe_variations(_run, given, when, switches=("dmq", "dmq_eligible", "redelivery_enabled", "respect_ttl"))


def _run(given: Json, when: list[Json]) -> Json:
    flow = _Flow(given, when)
    before: list[Any] | None = None
    for at, step in timed(when):
        if before is None:
            before = list(flow.delivered)
        flow.take(step, at)
    while (deadline := flow.queue.deadline) is not None:
        flow.advance(deadline)
    return flow.observations(before or [])


def _rules(given: Json) -> QueueSettings:
    names = {"initial_ms": "initial_ms", "multiplier_pct": "multiplier_percent", "max_ms": "max_ms"}
    delays = {name: given[word] for word, name in names.items() if word in given}
    rules: Json = {"backoff": backoff(**delays)} if delays else {}
    names = {"max_delivered_unacked": "max_backlog", "dmq": "dead_letters", "respect_dmq_eligible": "respect_eligible"}
    rules |= {name: given[word] for word, name in names.items() if word in given}
    rules |= {word: given[word] for word in ("max_redelivery", "redelivery_enabled", "respect_ttl") if word in given}
    return solace(max_ttl_ms=int(given.get("max_ttl_s", 0) * SECOND) if given.get("respect_ttl") else 0, **rules)


class _Flow:
    """A queue and its consumer, on an ideal clock, and what was seen of them."""

    def __init__(self, given: Json, when: list[Json]) -> None:
        if given.get("ack_mode", "CLIENT") not in MODES:
            raise Uncovered(f"ack_mode {given['ack_mode']} is not known")
        self._given = given
        self._mode = MODES[given.get("ack_mode", "CLIENT")]
        self._listed = "queue" in given or any(step["op"] in ("enqueue", "receive") for step in when)
        self.queue = RecordingQueue(_rules(given))
        self._now = 0
        self._ids: dict[str, Any] = {}
        self._outcomes = [OUTCOMES[word] for word in given.get("required_outcomes", OUTCOMES)]
        self.delivered: dict[Any, None] = {}
        self._deliveries: dict[str, int] = {}
        self._redelivered: list[Any] = []
        self._delays: list[int] = []
        self._failed_at: dict[str, int] = {}
        self._acked: list[Any] = []
        self._error: str | None = None
        for message in given.get("queue", []):
            self._enqueue(message)
        # `given` may describe a queue whose consumer has its messages already
        consuming = [step["op"] for step in when if step["op"] not in NEUTRAL or step["op"] in BINDS]
        if ("queue" in given and not consuming) or (consuming and consuming[0] not in BINDS):
            self._bind()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def take(self, step: Json, at: int) -> None:
        """Take one step."""
        if "t_ms" in step or at > self._now:
            self.advance(at)
        for _ in range(step.get("n", 1)):
            try:
                self._take(step)
            except DeliveryError as error:
                self._error = self._error or error.code
        self._move()

    def _take(self, step: Json) -> None:
        op, message = step["op"], step.get("id")
        if op == "enqueue":
            self._enqueue(message)
        elif op == "receive":
            self._enqueue(message)
            self._move()
        elif op in ("disconnect", "close"):
            self.queue.unbind(CONSUMER, self._now, "closed")
        elif op in BINDS:
            self._bind()
        elif op in ("settle", "settle_repeat"):
            self._settle(step, message, OUTCOMES[step["outcome"]])
        elif op == "ack":
            self._settle(step, message, "accepted")
        elif op in ("callback_ok", "callback_raise"):
            outcome = after_handler(self._mode, raised=op == "callback_raise")
            self._reach(step, message)
            if outcome is not None:
                self._settled(message, outcome)

    def _enqueue(self, message: Any) -> None:
        if str(message) not in self._ids:
            self._ids[str(message)] = message
            ttl_ms = int(self._given.get("msg_ttl_s", 0) * SECOND)
            self.queue.put(str(message), self._now, ttl_ms=ttl_ms, eligible=self._given.get("dmq_eligible", True))

    def _bind(self) -> None:
        if CONSUMER not in self.queue.consumers:
            self.queue.join(CONSUMER, self._now, outcomes=self._outcomes)
        self._move()

    def _settle(self, step: Json, message: Any, outcome: SampleOutcome) -> None:
        self._reach(step, message)
        if takes_call(self._mode, outcome):
            self._settled(message, outcome)

    def _reach(self, step: Json, message: Any) -> None:
        """Let the consumer have the message, as far as the scenario implies it."""
        if not self._listed:
            self._enqueue(message)
        self._move()
        name = str(message)
        while "t_ms" not in step and CONSUMER in self.queue.consumers and name in self.queue:
            if not self.queue[name].not_before:
                break
            self.advance(self.queue[name].not_before)

    def _settled(self, message: Any, outcome: SampleOutcome) -> None:
        refusal = self.queue.settle(CONSUMER, str(message), outcome, self._now)
        if refusal == "outcome-not-enabled":
            self._error = self._error or refusal.replace("-", "_")
        elif refusal is None and outcome == "failed":
            self._failed_at[str(message)] = self._now
        elif refusal is None and outcome == "accepted":
            self._acked.append(message)
        self._move()

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, until: int) -> None:
        """Let time pass up to a step."""
        while (deadline := self.queue.deadline) is not None and deadline <= until:
            self._now = max(self._now, deadline)
            self._move()
        self._now = max(self._now, until)
        self._move()

    def _move(self) -> None:
        for delivery in self.queue.dispatched(self._now):
            self._note(delivery)

    def _note(self, delivery: Event) -> None:
        message = self._ids[delivery.message]
        self.delivered[message] = None
        self._deliveries[delivery.message] = delivery.count
        if delivery.count > 1:
            self._redelivered.append(message)
        failed_at = self._failed_at.pop(delivery.message, None)
        if failed_at is not None:
            self._delays.append(delivery.at - failed_at)

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def observations(self, before: list[Any]) -> Json:
        """Return everything observable."""
        leaves = [exit_.at for exit_ in self.queue.exits]
        return {
            "queue": [self._ids[name] for name in self.queue],
            "dmq": self._left("dead-letter"),
            "deleted": self._left("discarded"),
            "acked": self._acked,
            "redelivered": list(dict.fromkeys(self._redelivered)),
            "redelivered_flag": bool(self._redelivered),
            "deliveries": PerName(list(self._deliveries.items())),
            "deliveries_min": max(self._deliveries.values(), default=0),
            "delays_ms": self._delays,
            "delivered_before": before,
            "delivered_after": list(self.delivered),
            "leaves_at_ms": leaves[-1] if leaves else None,
            "at_ms": leaves[-1] if leaves else None,
            "state": self._state(),
            "error": self._error,
        }

    def _left(self, how: MessageDisposition) -> list[Any]:
        return [self._ids[exit_.message] for exit_ in self.queue.exits if exit_.outcome == how]

    def _state(self) -> str | None:
        """Return the state of the first message."""
        first = next(iter(self._ids), None)
        if first is None:
            return None
        for exit_ in self.queue.exits:
            if exit_.message == first:
                return STATES[exit_.outcome]
        return "delivered" if self.queue[first].holders else "queued"


INTERPRETER = Interpreter(
    prefix="SOL",
    given=frozenset(
        {"ack_mode", "dmq", "dmq_eligible", "initial_ms", "max_delivered_unacked", "max_ms", "max_redelivery"}
        | {"max_ttl_s", "msg_ttl_s", "multiplier_pct", "queue", "redelivery_enabled", "required_outcomes"}
        | {"respect_dmq_eligible", "respect_ttl"}
    ),
    steps={
        **dict.fromkeys(
            ("ack", "callback_ok", "callback_raise", "enqueue", "receive"),
            frozenset({"id"}),
        ),
        **dict.fromkeys(("bind", "check", "close", "disconnect", "rebind"), frozenset()),
        "settle": frozenset({"id", "outcome"}),
        "settle_repeat": frozenset({"id", "n", "outcome"}),
    },
    expect=frozenset(
        {"acked", "at_ms", "by_ms", "delays_ms", "deleted", "delivered_after", "delivered_before", "deliveries"}
        | {"deliveries_min", "dmq", "error", "leaves_at_ms", "not_before_ms", "queue", "redelivered"}
        | {"redelivered_flag", "state"}
    ),
    observe=observe,
    more=re.compile(VARIATION),
)
