"""Scenarios of AMPS queues: leases, backlogs, acknowledgement batches, cancels, fairness.

What a scenario leaves out is implied: who acts where nobody is named holds the message, and has been delivered it.
Where a step delivers messages nothing else does; messages that a step enqueues go out as the rules say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ackstream.client.queues._queue_session import AckBatches
from ackstream.client.queues.queued_messages import after_handler, takes_call
from ackstream.errors import DeliveryError, InconsistentQosError
from ackstream.protocol.queues import Bind, SettleMessages
from tests.conformance.scenarios.observations import PerName, Series
from tests.conformance.scenarios.scenario import VARIATION, Interpreter, Json, Uncovered, observe_variations, timed
from tests.jobs.queues.recording import RecordingQueue
from tests.jobs.queues.rules import amps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.jobs.queues.records import Event
    from ackstream.protocol.readers import SampleOutcome

OPTIONS: dict[SampleOutcome, str | None] = {"accepted": None, "failed": "cancel", "rejected": "expire"}
OUTCOMES: dict[str, SampleOutcome] = {"ack": "accepted", "cancel": "failed", "expire": "rejected"}
OUTCOMES_ALL: tuple[SampleOutcome, ...] = ("accepted", "failed", "rejected")
SOMEONE = "someone"
LEASINGS = ("sublet", "strict")
FAIRNESS = ("fast", "round-robin", "proportional")


def observe(given: Json, when: list[Json]) -> Mapping[str, Any]:
    """Run the steps; see :class:`Interpreter`."""
    values = [("leasing", value) for value in LEASINGS] + [("fairness", value) for value in FAIRNESS]
    return observe_variations(_run, given, when, values=values)


def _run(given: Json, when: list[Json]) -> Json:
    if given.get("leasing", "sublet") not in LEASINGS or given.get("fairness", "proportional") not in FAIRNESS:
        raise Uncovered(f"not known: leasing {given.get('leasing')} or fairness {given.get('fairness')}")
    try:
        system = _System(given, when)
        cut = _System(given, when)
    except InconsistentQosError as error:
        return {"error": error.code}
    seen = system.run(when)
    return seen | {"redeliver_on_disconnect": cut.cut_off(when)}


class _System:
    """A queue and its consumers, on an ideal clock."""

    def __init__(self, given: Json, when: list[Json]) -> None:
        names = {"lease_ms": "lease_ms", "max_cancels": "max_failures", "max_deliveries": "max_deliveries"}
        rules: Json = {name: given[word] for word, name in names.items() if word in given}
        # what a step delivers was deliverable, and `load` says what each has room for
        self._free = "load" in given or any(step["op"] != "enqueue" and "msg" in step for step in when)
        if "fairness" in given:
            rules["fairness"] = given["fairness"]
        self.queue = RecordingQueue(
            amps(
                **rules,
                max_backlog=0 if self._free and "queue_max_per_sub" not in given else given.get("queue_max_per_sub", 1),
                settler=given.get("leasing", "sublet"),
                dead_letters="dead_letter" in given,
            )
        )
        self._auto = bool(given.get("auto_ack"))
        ops = {step["op"] for step in when}
        self._dispatches = "enqueue" in ops and "deliver" not in ops
        self._batch = (given.get("ack_batch", 1), given.get("ack_timeout_ms", 1_000))
        self._batches = {SOMEONE: AckBatches(Bind("q", SOMEONE, 1), *self._batch)}
        self.now = 0
        self._names: dict[str, None] = {}
        self._sow_deletes: list[Json] = []
        self._granted: int | None = None
        self._deliveries: dict[str, int] = {}
        self._delivered_to: list[str | None] = []
        self._before_first_ack: int | None = None
        self._cancels: dict[str, int] = {}
        self._expired_after: int | None = None
        self._returned_at: int | None = None
        self._error: str | None = None
        self._synthetic = 0
        for consumer in given.get("consumers", []):
            self._bind(consumer)
        for consumer, (held, backlog) in given.get("load", {}).items():
            self.queue.join(consumer, 0, backlog=backlog, outcomes=OUTCOMES_ALL)
            for number in range(held):
                self.queue.put(f"{consumer}{number}", 0)
                self.queue.deliver(f"{consumer}{number}", consumer, 0)

    def _bind(self, consumer: str) -> None:
        if consumer not in self.queue.consumers:
            self.queue.join(consumer, self.now, outcomes=OUTCOMES_ALL)

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(self, when: list[Json]) -> Json:
        """Take the steps; return the observations after them, with those of everything that was still due."""
        for at, step in timed(when):
            self._take(step, at)
        seen = self._observations()
        for _ in range(1 + len(self._names)):
            deadlines = [batches.deadline for batches in self._batches.values()] + [self.queue.deadline]
            due = min((deadline for deadline in deadlines if deadline is not None), default=None)
            if due is None:
                break
            self._advance(due)
        return seen | {"sow_delete": self._sow_deletes, "redeliver_not_before_ms": self._returned_at}

    def cut_off(self, when: list[Json]) -> str | None:
        """Take the steps and let the holders' connections drop; return when their messages can go to others."""
        for at, step in timed(when):
            self._take(step, at)
        holders = [consumer for consumer in self.queue.consumers.values() if consumer.held]
        held = [message for consumer in holders for message in consumer.held]
        for consumer in holders:
            self.queue.unbind(consumer.name, self.now, "closed")
        if not held:
            return None
        waiting = all(name in self.queue and not self.queue[name].holders for name in held)
        return "immediately" if waiting else "never"

    def _advance(self, until: int) -> None:
        for deadline in sorted({batches.deadline or 0 for batches in self._batches.values()}):
            if self.now <= deadline <= until:
                self._time_passes(deadline)
                for batches in self._batches.values():
                    self._send(batches.due(self.now), immediate=False)
        self._time_passes(until)

    def _time_passes(self, until: int) -> None:
        while (deadline := self.queue.deadline) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self._move()
        self.now = max(self.now, until)

    def _move(self) -> None:
        held = {name for name in self.queue if self.queue[name].holders}
        self.queue.advance(self.now)
        self._note_returns(held)
        if self._dispatches:
            for delivery in self.queue.dispatched(self.now):
                self._note(delivery)

    def _note_returns(self, held: set[str]) -> None:
        free = [name for name in held if name in self.queue and not self.queue[name].holders]
        if free and self._returned_at is None:
            self._returned_at = self.now

    def _note(self, delivery: Event) -> None:
        self._deliveries[delivery.message] = delivery.count
        self._delivered_to.append(delivery.consumer)

    def _take(self, step: Json, at: int) -> None:
        self._advance(at)
        op, message, who = step["op"], step.get("msg"), step.get("who") or step.get("by")
        held = {name for name in self.queue if self.queue[name].holders}
        if op == "subscribe":
            consumer = step.get("cid", SOMEONE)
            backlog = step.get("max_backlog", 1)
            self.queue.join(consumer, self.now, backlog=backlog, outcomes=OUTCOMES_ALL)
            self._granted = self.queue.consumers[consumer].backlog
            self._batches_of(consumer).grant(self._granted)
        elif op == "enqueue":
            for _ in range(step.get("n", 1)):
                self._enqueue(message or f"m{len(self._names) + 1}")
        elif op == "deliver":
            self._deliver(step["msg"], step.get("to", SOMEONE))
        elif op in ("disconnect", "unsubscribe"):
            self.queue.unbind(who or SOMEONE, self.now, "closed")
        elif op in ("handler_raises", "handler_returns"):
            outcome = after_handler("auto-cancel" if self._auto else "client", raised=op == "handler_raises")
            if outcome is not None:
                self._settle(step["msg"], who, outcome)
        elif op in OUTCOMES:
            try:
                self._call(step, op, who)
            except DeliveryError as error:
                self._error = self._error or error.code
        self._note_returns(held)
        self._move()

    def _call(self, step: Json, op: str, who: str | None) -> None:
        if self._before_first_ack is None:
            self._before_first_ack = len(self._delivered_to)
        outcome = OUTCOMES[op]
        if not takes_call("auto-cancel" if self._auto else "client", outcome):
            return
        if "msg" in step:
            self._settle(step["msg"], who, outcome)
            return
        for name in self._oldest_held(step.get("n", 1)):
            self._settle(name, who, outcome)

    def _oldest_held(self, number: int) -> list[str]:
        """Return messages to acknowledge where the scenario only counts them."""
        held = [name for name in self.queue if self.queue[name].holders][:number]
        self._synthetic += number - len(held)
        return held + [f"unnamed {self._synthetic - index}" for index in range(number - len(held))]

    def _enqueue(self, message: str) -> None:
        if message not in self._names:
            self._names[message] = None
            self.queue.put(message, self.now)

    def _deliver(self, message: str, consumer: str) -> None:
        self._enqueue(message)
        self._bind(consumer)
        delivery = self.queue.deliver(message, consumer, self.now)
        if delivery is not None:
            self._note(delivery)

    def _settle(self, message: str, who: str | None, outcome: SampleOutcome) -> None:
        if who is None and outcome != "accepted" and message not in self._names:
            self._enqueue(message)
        if who is None and message in self.queue and not self.queue[message].holders:
            self._deliver(message, SOMEONE)
        holders = list(self.queue[message].holders) if message in self.queue else []
        consumer = who or (holders[0] if holders else SOMEONE)
        self._send(self._batches_of(consumer).add(message, self.now, outcome), immediate=True)

    def _batches_of(self, consumer: str) -> AckBatches:
        return self._batches.setdefault(consumer, AckBatches(Bind("q", consumer, 1), *self._batch))

    def _send(self, batches: list[SettleMessages], *, immediate: bool) -> None:
        for batch in batches:
            self._sow_deletes.append(
                {
                    "bookmarks": len(batch.messages),
                    "option": OPTIONS[batch.outcome],
                    "immediate": immediate,
                    "at_ms": self.now,
                    "t_ms": self.now,
                }
            )
            for message in batch.messages:
                ignored = self.queue.settle(batch.consumer, message, batch.outcome, self.now)
                if batch.outcome == "failed" and ignored is None:
                    self._cancels[message] = self._cancels.get(message, 0) + 1
                    if message not in self.queue:
                        self._expired_after = self._cancels[message]
            self._move()

    # -- what can be seen ---------------------------------------------------------------------------------------------

    def _observations(self) -> Json:
        exits = {exit_.message: exit_ for exit_ in self.queue.exits}
        before = self._before_first_ack
        return {
            "cancel_count": PerName(list(self._cancels.items())),
            "dead_letter": [exit_.message for exit_ in self.queue.exits if exit_.outcome == "dead-letter"],
            "delivered_before_first_ack": len(self._delivered_to) if before is None else before,
            "delivered_to": Series(self._delivered_to or [None]),
            "deliveries": PerName(list(self._deliveries.items())),
            "effective_max_backlog": self._granted,
            "error": self._error,
            "expired_after_cancel": self._expired_after,
            "queue": [name for name in self._names if name in self.queue],
            "state": self._state(exits),
        }

    def _state(self, exits: Mapping[str, Any]) -> str | None:
        """Return the state of the first message."""
        name = next(iter(self._names), None)
        if name is None:
            return None
        if name in exits:
            return "removed" if exits[name].outcome == "settled" else "expired"
        return "leased" if self.queue[name].holders else "available"


INTERPRETER = Interpreter(
    prefix="AMPS",
    given=frozenset(
        {"ack_batch", "ack_timeout_ms", "auto_ack", "consumers", "dead_letter", "fairness", "lease_ms", "leasing"}
        | {"load", "max_cancels", "max_deliveries", "queue_max_per_sub"}
    ),
    steps={
        **dict.fromkeys(("ack", "cancel", "expire"), frozenset({"by", "msg", "n"})),
        **dict.fromkeys(("handler_raises", "handler_returns"), frozenset({"by", "msg"})),
        **dict.fromkeys(("disconnect", "unsubscribe"), frozenset({"who"})),
        "deliver": frozenset({"msg", "to"}),
        "enqueue": frozenset({"msg", "n"}),
        "subscribe": frozenset({"cid", "max_backlog"}),
    },
    expect=frozenset(
        {"cancel_count", "dead_letter", "delivered_before_first_ack", "delivered_to", "deliveries", "error", "queue"}
        | {"effective_max_backlog", "expired_after_cancel", "redeliver_not_before_ms", "redeliver_on_disconnect"}
        | {"sow_delete", "state"}
    ),
    observe=observe,
    more=re.compile(VARIATION),
)
