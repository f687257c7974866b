"""Scenarios of Solace producers: window, broker acks, retransmission, refusals, lost flows (brokers.md 3.1, to S13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.client import publish_window
from ackstream.client.publish_window import PublishWindow, WindowError, notified
from tests.conformance.models.admission import admit
from tests.conformance.models.cadence import Cadence
from tests.conformance.scenarios.clock import Clock
from tests.conformance.scenarios.observations import Counted, Span
from tests.conformance.scenarios.scenario import Interpreter, Uncovered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.scenarios.scenario import Json

_ACTS, _TIMERS, _DEADLINES = range(3)
"""Ranks at one time: steps of the scenario, then timers, then the end of somebody's patience."""

_VALUES: dict[str, tuple[Any, ...]] = {
    "broker": ("ok", "silent"),
    "ack_event_mode": ("PER_MESSAGE", "WINDOWED"),
    "reject": ("never", "when-queue-enabled", "always"),
    "on_unknown_flow": ("AUTO_RETRY", "DISCONNECT"),
}


class _Flow:
    """A producer and its broker."""

    def __init__(self, given: Json) -> None:
        self.clock = Clock()
        self.error: str | None = None
        self.error_at: int | None = None
        self.outcome: str | None = None
        self.acks: list[Json] = []
        self.nacks: list[Json] = []
        self.notifications: list[int] = []
        self.transmissions: list[int] = []
        self.resent: list[int] = []
        self.event: Json | None = None
        self.duplicates_max = 0
        self.connected = True
        self._given = given
        self._queues: Mapping[str, Any] = given.get("queues", {"q": "ok"})
        self.stored = dict.fromkeys(self._queues, 0)
        self._copies: dict[int, int] = {}
        self._silent = given.get("broker", "ok") == "silent"
        self._losses: int = given.get("lose_broker_acks", 0)
        unacked = given.get("unacked", 0)
        size = given.get("pub_window", max(publish_window.DEFAULT_WINDOW, unacked))
        self.window = PublishWindow(size, given.get("pub_ack_time_ms", publish_window.DEFAULT_ACK_TIME_MS))
        self._cadence = Cadence(size)
        self._immediately: set[int] = set()
        self._awaited: set[int] = set()
        self._accepted = 0
        self._watched: int | None = None
        for message in range(1, unacked + 1):
            self.window.offer(message, 0)

    # -- the producer ------------------------------------------------------------------------------------------------

    def publish(self, step: Json) -> None:
        if step.get("ack_immediately"):
            self._immediately.add(step["id"])
        if self.window.offer(step["id"], self.clock.now):
            self._transmit(step["id"])

    def publish_await_ack(self, step: Json) -> None:
        message = step["id"]
        self._awaited.add(message)
        self.outcome = "unknown"
        if step.get("timeout_ms"):
            self.clock.at(self.clock.now + step["timeout_ms"], lambda: self._give_up(message), _DEADLINES)
        self.publish(step)

    def reconnect(self, step: Json) -> None:
        flow = step.get("flow", "known")
        if flow not in ("known", "unknown"):
            raise Uncovered(f"not known: the flow {flow}")
        self.connected = True
        if flow == "known":
            self.resent = self.window.in_flight
            for message in self.resent:
                self._transmit(message)
            return
        republish = self.window.flow_lost(self._given.get("on_unknown_flow", "AUTO_RETRY"), self.clock.now)
        self.resent = republish.resend
        self.duplicates_max = republish.duplicates_max
        if republish.returned:
            self.connected = False
            self.event = {"disconnected": len(republish.returned), "returned": republish.returned}
        else:
            self.event = {"republishing": len(republish.resend)}
            self._copies.clear()
            for message in republish.resend:
                self._transmit(message)

    def check(self, _step: Json) -> None:
        """Time has come this far."""

    def _transmit(self, message: int) -> None:
        self.transmissions.append(self.clock.now)
        self._watch()
        if not self._silent:
            self._receive(message)

    def _watch(self) -> None:
        deadline = self.window.deadline
        if deadline is not None and self._watched is None:
            self._watched = deadline
            self.clock.at(deadline, self._retransmit, _TIMERS)

    def _retransmit(self) -> None:
        self._watched = None
        for message in self.window.overdue(self.clock.now):
            self._transmit(message)
        self._watch()

    def _answered(self, message: int, error: str | None) -> None:
        if message in self._awaited:
            self._awaited.remove(message)
            self.outcome = "acknowledged" if error is None else "rejected"
            if error is not None:
                self._fail(error)

    def _give_up(self, message: int) -> None:
        if message in self._awaited:
            self._awaited.remove(message)
            self._fail("timeout")

    def _fail(self, error: str) -> None:
        self.error, self.error_at = error, self.clock.now

    def _admit(self) -> None:
        for message in self.window.admit(self.clock.now):
            self._transmit(message)

    # -- the broker --------------------------------------------------------------------------------------------------

    def _receive(self, message: int) -> None:
        if message in self._copies:
            if self._cadence.repeated():
                self._acknowledge()
            return
        verdict = admit(
            self._queues,
            self._given.get("reject", "when-queue-enabled"),
            reject_no_match=self._given.get("reject_no_match", False),
        )
        if verdict.reason is not None:
            self._refuse(message, verdict.reason)
            return
        self._accepted = max(self._accepted, message)
        for queue in verdict.queues:
            self.stored[queue] += 1
        self._copies[message] = 1 if verdict.queues else 0
        if self._cadence.arrived(self.clock.now, immediately=message in self._immediately):
            self._acknowledge()
        elif self._cadence.deadline is not None:
            self.clock.at(self._cadence.deadline, self._expire, _TIMERS)

    def _expire(self) -> None:
        if self._cadence.expired(self.clock.now):
            self._acknowledge()

    def _acknowledge(self) -> None:
        self.acks.append({"up_to": self._accepted, "at_ms": self.clock.now})
        if self._lost():
            return
        done = self.window.acknowledged(self._accepted)
        self.notifications += notified(done, self._given.get("ack_event_mode", "PER_MESSAGE"))
        for message in done:
            self._answered(message, None)
        self._admit()

    def _refuse(self, message: int, reason: str) -> None:
        # a refusal closes the run before it, or the next cumulative ack would be about it, too
        if self._cadence.flush():
            self._acknowledge()
        if self._lost():
            return
        if self.window.refused(message):
            self.nacks.append({"id": message, "reason": reason, "at_ms": self.clock.now})
            self._answered(message, "rejected")
            self._admit()

    def _lost(self) -> bool:
        lost = self._losses > 0
        self._losses -= lost
        return lost

    # -- what was seen -----------------------------------------------------------------------------------------------

    def observation(self) -> Json:
        at = [ack["at_ms"] for ack in self.acks]
        if self.error_at is not None:
            at = [self.error_at]
        seen: Json = {
            "broker_acks": self.acks,
            "app_notifications": self.notifications,
            "in_flight": len(self.window.in_flight),
            "blocked": self.window.blocked,
            "transmissions_at_ms": self.transmissions,
            "queue_copies": max(self._copies.values(), default=0),
            "nack": self.nacks,
            "stored": self.stored,
            "error": self.error,
            "outcome": self.outcome,
            "resent": Counted(self.resent),
            "event": self.event,
            "duplicates_max": self.duplicates_max,
            "connected": self.connected,
        }
        return seen | {"at_ms": Span(min(at), max(at))} if at else seen


_OPERATIONS = {
    "publish": _Flow.publish,
    "publish_await_ack": _Flow.publish_await_ack,
    "reconnect": _Flow.reconnect,
    "check": _Flow.check,
}


def _run(given: Json, when: list[Json]) -> Json:
    try:
        flow = _Flow(given)
    except WindowError as error:
        return {"error": "invalid_window", "reason": str(error)}
    last = 0
    for step in when:
        last = max(last, step.get("t_ms", last))
        flow.clock.at(last, lambda step=step: _OPERATIONS[step["op"]](flow, step), _ACTS)  # type: ignore[misc]
    # a silent broker is asked again and again without an end
    silent = given.get("broker") == "silent"
    horizon = max((step.get("t_ms", 0) + step.get("timeout_ms", 0) for step in when), default=0)
    flow.clock.run(until=horizon if silent else None)
    return flow.observation()


_OTHERWISE: dict[str, Json] = {
    "default_profile": {"reject_no_match": False},
    "when_queue_enabled": {"reject": "when-queue-enabled"},
    "never": {"reject": "never"},
    "always": {"reject": "always"},
}
"""Words of ``expect`` that are about the same steps with one setting changed."""


def observe(given: Json, when: list[Json]) -> Json:
    """Run a scenario, and its variants."""
    for word, known in _VALUES.items():
        if given.get(word, known[0]) not in known:
            raise Uncovered(f"not known: {word} {given[word]}")
    for state in given.get("queues", {}).values():
        if state not in ("ok", "full", "disabled"):
            raise Uncovered(f"not known: a queue that is {state}")
    seen = _run(given, when)
    variants = {word: _run(given | changes, when) for word, changes in _OTHERWISE.items()}
    unflagged = [{key: value for key, value in step.items() if key != "ack_immediately"} for step in when]
    return seen | variants | {"without_flag": _run(given, unflagged)}


INTERPRETER = Interpreter(
    prefix="SOL",
    given=frozenset(
        {
            *("pub_window", "broker", "ack_event_mode", "pub_ack_time_ms", "lose_broker_acks", "queues", "reject"),
            *("reject_no_match", "unacked", "on_unknown_flow"),
        }
    ),
    steps={
        "publish": frozenset({"id", "ack_immediately"}),
        "publish_await_ack": frozenset({"id", "ack_immediately", "timeout_ms"}),
        "reconnect": frozenset({"flow"}),
        "check": frozenset(),
    },
    expect=frozenset(
        {
            *("broker_acks", "app_notifications", "in_flight", "blocked", "transmissions_at_ms", "queue_copies"),
            *("nack", "stored", "error", "at_ms", "by_ms", "not_before_ms", "outcome", "resent", "event"),
            *("duplicates_max", "connected", "without_flag", *_OTHERWISE),
        }
    ),
    observe=observe,
)
