"""The server of an AMPS scenario: its log and the places it is replicated to, its topic, its acks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.client.bookmarks import Replay
from ackstream.jobs.persist.replication import AgeRule, AgeRules, Replication
from ackstream.protocol import queries
from ackstream.protocol.messages import DUPLICATE, CommandAck
from tests.conformance.models.connection import Connection, Terms
from tests.conformance.scenarios.observations import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.protocol.queries import QueryCommand
    from tests.conformance.scenarios.clock import Clock
    from tests.conformance.scenarios.scenario import Json

_REPORTS, _CHECKS, _BEATS = 1, 2, 3
"""Ranks at one time, after the steps of the scenario."""

PUBLISHES = frozenset({"publish", "delta_publish", "sow_delete"})

_LOCAL, _DOWNSTREAM = "local", "downstream"
_LOG = 0
"""The partition of the only log there is."""


class Server:
    """Takes commands; tells the client by calling ``tell``, which returns whether the application sees the ack."""

    def __init__(self, given: Json, when: list[Json], clock: Clock, tell: Callable[[CommandAck], bool]) -> None:
        self.log: list[str] = []
        self.copies: dict[int, int] = {}
        self.log_end: int = given.get("log_end", max(given.get("received", [0]), default=0))
        self._given = given
        self._clock = clock
        self._tell = tell
        self._items: list[str | int] = []
        self._subscriptions: list[tuple[Replay, QueryCommand]] = []
        self._connected = True
        self._delays, self._replication = _replication(given)
        self._appended = 0
        self._connection = Connection(
            given.get("client", ""),
            Terms(logged=given.get("txlog", True), conflation_ms=given.get("ack_conflation_ms", 1000)),
            expected=_first_expected(given, when),
        )

    @property
    def stream(self) -> Stream:
        """What the client got on its subscriptions, in order."""
        return Stream(self._items)

    def matching(self, position: int) -> bool:
        """Tell whether the subscription's filter takes a message of the log."""
        last = self._given.get("last_matching")
        received = self._given.get("received", [])
        if received and position <= max(received):
            return position in received
        return last is None or position <= last

    # -- commands ----------------------------------------------------------------------------------------------------

    def take(self, command: QueryCommand, outcome: str | None) -> None:
        """Do a command.

        :param outcome: why a publish fails where the scenario says so
        """
        reason = outcome or queries.refusal(command)
        if reason is not None:
            self.log.append(f"{command.name} {command.seq or command.cid or ''}: {reason}")
        if command.name in PUBLISHES:
            self._publish(command, reason)
        elif command.name == "flush":
            self._send(self._connection.flush(command))
        else:
            self._send(queries.opening(command, reason))
            if reason is None:
                self._carry_out(command)
        self._advance()

    def _publish(self, command: QueryCommand, reason: str | None) -> None:
        seq = command.seq
        again = seq is not None and self.copies.get(seq, 0) > 0
        if reason is None and not again:
            self._appended += 1
            self._replicate(self._appended)
        if seq is not None:
            self.copies[seq] = int(again or reason in (None, DUPLICATE))
        self._send(self._connection.publish(command, DUPLICATE if again else reason, self._appended))
        if reason is None and command.name == "sow_delete":
            self._carry_out(command)
        elif reason is None and not again:
            self.append_range(self.log_end + 1, self.log_end + 1)

    def _carry_out(self, command: QueryCommand) -> None:
        records, matching = self._given.get("records", 0), self._given.get("matching", 0)
        if command.name.startswith("sow"):
            if command.name != "sow_delete":
                self._items += ["group_begin", *range(1, queries.returned(command, matching) + 1), "group_end"]
            self._send(queries.completed(command))
            self._send(queries.statistics(command, records, matching))
        if "subscribe" in command.name and command.name != "unsubscribe":
            self._subscribe(command)

    def _subscribe(self, command: QueryCommand) -> None:
        starts = {None: self.log_end, queries.NOW: self.log_end, queries.EPOCH: 0, queries.MOST_RECENT: 0}
        start = command.bookmark
        after = starts[start] if start in starts else int(start)  # type: ignore[arg-type]
        stop = None if command.stop is None else {_LOG: command.stop}
        replay = Replay({_LOG: after}, {_LOG: self.log_end}, stop)
        self._subscriptions.append((replay, command))
        for position in range(after + 1, self.log_end + 1):
            self._deliver(replay, command, position)
        self._complete(replay, command)

    def _deliver(self, replay: Replay, command: QueryCommand, position: int) -> None:
        if replay.take(_LOG, position) == "deliver" and self.matching(position):
            self._items.append(position)
        self._complete(replay, command)

    def _complete(self, replay: Replay, command: QueryCommand) -> None:
        if replay.completes() and command.bookmark is not None:
            self._send(queries.completed(command, self.log_end if command.stop is None else command.stop))

    def append_range(self, first: int, last: int) -> None:
        """Let others publish."""
        for position in range(first, last + 1):
            self.log_end = max(self.log_end, position)
            for replay, command in self._subscriptions:
                if not replay.over:
                    self._deliver(replay, command, position)

    def tick_persisted(self) -> None:
        """Tell a bookmark subscription how far the log is."""
        self._send([CommandAck(ack_type="persisted", bookmark=self.log_end, sub_id="s")])

    def disconnect(self) -> None:
        """Lose the link: subscriptions end with it."""
        self._subscriptions.clear()

    def confirmed(self, ack: CommandAck, kept: Iterable[int]) -> None:
        """Take from an ack of the scenario what is in the topic."""
        if ack.ack_type != "persisted" or ack.seq is None:
            return
        stored = ack.status == "success" or ack.reason == DUPLICATE
        for seq in kept:
            if seq < ack.seq or (seq == ack.seq and stored):
                self.copies[seq] = 1
        if not stored:
            self.copies[ack.seq] = 0

    # -- time --------------------------------------------------------------------------------------------------------

    def _replicate(self, position: int) -> None:
        now = self._clock.now
        self._replication.append(position, now)
        for name, delay in self._delays.items():
            if delay is not None:
                at = self._report_time(name, now + delay)
                self._clock.at(at, lambda name=name: self._report(name, position), _REPORTS)  # type: ignore[misc]
        self._plan_check()

    def _report_time(self, name: str, done: int) -> int:
        interval: int = 0 if name == _LOCAL else self._given.get("downstream_ack_conflation_ms", 0)
        return done if interval == 0 else max(1, -(-done // interval)) * interval

    def _report(self, name: str, position: int) -> None:
        self._replication.report(name, position)
        if "upgrade" in self._given:
            self._plan_check()
        self._advance()

    def _plan_check(self) -> None:
        for rule in (self._given.get("downgrade"), self._given.get("upgrade")):
            if rule is not None:
                every = rule["every_ms"]
                self._clock.at((self._clock.now // every + 1) * every, self._check, _CHECKS)

    def _check(self) -> None:
        for change in self._replication.check(self._clock.now):
            self.log.append(f"destination {change.destination} is {change.mode} now: age {change.age_ms} ms")
        if self._replication.waiting:
            self._plan_check()
        self._advance()

    def _advance(self) -> None:
        self._send(self._connection.advance(self._replication.durable))
        self._clock.at(self._connection.next(self._clock.now), self._beat, _BEATS)

    def _beat(self) -> None:
        self._send(self._connection.merged())

    def _send(self, acks: Iterable[CommandAck]) -> None:
        for ack in acks:
            if self._tell(ack) and ack.cid is not None:
                self._items.append(f"ack:{ack.ack_type}")


def _first_expected(given: Json, when: list[Json]) -> int:
    """Return the number the server waits for: the one after its last, or the first the client has to offer."""
    for word in ("server_last_seq", "store_discarded_up_to"):
        if word in given:
            return int(given[word]) + 1
    published = [step["seq"] for step in when if "seq" in step and step["op"] != "server_ack"]
    return min([*given.get("store_unacked", []), *published], default=1)


def _replication(given: Json) -> tuple[dict[str, int | None], Replication]:
    sync: dict[str, int | None] = dict(given.get("sync_destinations", {}))
    if "downstream_ack_conflation_ms" in given and not sync:
        sync = {_DOWNSTREAM: 0}
    sync[_LOCAL] = given.get("local_persist_ms", 0)
    asynchronous: dict[str, int | None] = given.get("async_destinations", {})
    rules = AgeRules(**{name: AgeRule(**given[name]) for name in ("downgrade", "upgrade") if name in given})
    return sync | asynchronous, Replication(dict.fromkeys(sync, rules))
