"""Scenarios of AMPS publishers, queries and bookmark subscriptions (brokers.md 1.1 A1 to A27).

A server and a client with an ideal link between them: the steps are commands of the client, and things that happen to
the server. What the server decides by itself follows from ``given``; acks may also be put into a scenario as steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ackstream.protocol import queries
from ackstream.protocol.queries import QueryCommand
from tests.conformance.scenarios.amps_client import Client
from tests.conformance.scenarios.amps_server import PUBLISHES, Server
from tests.conformance.scenarios.clock import Clock
from tests.conformance.scenarios.observations import Lines, Span
from tests.conformance.scenarios.scenario import Interpreter, Uncovered

if TYPE_CHECKING:
    from ackstream.protocol.messages import CommandAck
    from tests.conformance.scenarios.scenario import Json

_STEPS, _TIMEOUTS = 0, 9

_COMMANDS = frozenset(
    {
        *("subscribe", "delta_subscribe", "sow", "sow_and_subscribe", "sow_and_delta_subscribe", "unsubscribe"),
        *("flush", "heartbeat", "sow_delete", "publish", "delta_publish"),
    }
)
_COMMAND_WORDS = frozenset(
    {"cid", "request", "seq", "outcome", "filter", "bookmark", "range", "top_n", "timeout_ms", "sub_id"}
)


class _Scenario:
    def __init__(self, given: Json, when: list[Json]) -> None:
        self._clock = Clock()
        self._given = given
        self._silent = given.get("server") == "silent"
        self._acks: list[Json] = []
        self._asked: dict[str | None, frozenset[str]] = {None: queries.asked(given.get("request", ()))}
        self._sends: list[str] = []
        self._errors: list[tuple[int, str]] = []
        self._done_at: int | None = None
        self._sdk_error: str | None = None
        self._flushes: list[int] = []
        self._client = Client(given)
        self._server = Server(given, when, self._clock, self._told)

    def run(self, when: list[Json]) -> Json:
        time = 0
        for step in when:
            time = max(time, step.get("t_ms", time))
            self._clock.at(time, lambda step=step: self._step(step), _STEPS)  # type: ignore[misc]
        self._clock.run()
        return self._observation()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _step(self, step: Json) -> None:
        op = step["op"]
        if op in _COMMANDS:
            self._command(step)
        else:
            getattr(self, f"_{op}")(step)
        self._client.note()

    def _command(self, step: Json) -> None:
        command = _read(step, self._given)
        self._asked[command.cid] = command.asked
        if command.seq is not None:
            self._client.published(command.seq)
        if command.name not in ("publish", "delta_publish"):
            # the library wants to know itself
            command = replace(command, asked=command.asked | {"processed"})
            self._client.session.sent(command.name, command.cid, self._clock.now, step.get("timeout_ms", 0))
            self._watch()
        if not self._silent:
            outcome = step.get("outcome", "ok")
            self._server.take(command, None if outcome == "ok" else outcome)

    def _logon(self, step: Json) -> None:
        cid, last = step.get("cid"), step.get("server_last_seq", self._given.get("server_last_seq"))
        self._client.session.sent("logon", cid, self._clock.now, step.get("timeout_ms", 0))
        self._watch()
        if last is not None and not self._silent:
            self._client.logged_on(last)
            self._client.answer(cid)

    def _reconnect(self, step: Json) -> None:
        self._disconnect(step)
        self._logon({"server_last_seq": 0} | step)

    def _disconnect(self, _step: Json) -> None:
        self._client.session.lost()
        self._server.disconnect()

    def _server_ack(self, step: Json) -> None:
        fields = {key: value for key, value in step.items() if key not in ("op", "t_ms")}
        self._told(self._client.read_ack(fields), scripted=True)

    def _publish_flush(self, step: Json) -> None:
        self._done_at = None
        if self._client.store.unpersisted_count == 0:
            self._done_at = self._clock.now
            return
        self._flushes.append(self._clock.now)
        if step.get("timeout_ms"):
            self._clock.at(self._clock.now + step["timeout_ms"], self._flush_expired, _TIMEOUTS)

    def _publish_range(self, step: Json) -> None:
        self._server.append_range(step["from"], step["to"])

    def _tick_persisted(self, _step: Json) -> None:
        self._server.tick_persisted()

    def _resume(self, step: Json) -> None:
        self._resumed(step.get("from", queries.MOST_RECENT))

    def _restart(self, step: Json) -> None:
        if step.get("sub_id", "same") != "same":
            self._client.forget()
        self._resumed(queries.MOST_RECENT)

    def _check(self, _step: Json) -> None:
        """Time has come this far."""

    def _resumed(self, start: str | int) -> None:
        self._client.session.connected = True
        self._client.resume(start, self._server.log_end, self._server.matching)

    # -- what comes from the server ----------------------------------------------------------------------------------

    def _told(self, ack: CommandAck, *, scripted: bool = False) -> bool:
        asked = self._asked.get(ack.cid, self._asked[None])
        seen = scripted or ack.cid is None or ack.ack_type in asked or ack.reason == queries.NOT_SUPPORTED
        if seen:
            self._acks.append(self._client.plain(ack) | {"at_ms": self._clock.now})
        if scripted:
            self._server.confirmed(ack, self._client.store.unpersisted)
        self._client.take(ack)
        outcome, sends = self._client.session.answered(ack)
        self._sends += map(str, sends)
        if outcome is not None and outcome.reason is not None:
            self._sdk_error = self._client.error_name(outcome.reason)
        if self._flushes and self._client.store.unpersisted_count == 0:
            self._flushes.clear()
            self._done_at = self._clock.now
        if scripted and outcome is not None and outcome.command == "logon" and ack.seq is not None:
            self._client.logged_on(ack.seq)
        return seen

    # -- time --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if (deadline := self._client.session.deadline) is not None:
            self._clock.at(deadline, self._expire, _TIMEOUTS)

    def _expire(self) -> None:
        outcomes, sends = self._client.session.expire(self._clock.now)
        self._errors += [(self._clock.now, "timed_out") for _ in outcomes]
        self._sends += map(str, sends)

    def _flush_expired(self) -> None:
        if self._flushes:
            self._flushes.clear()
            self._errors.append((self._clock.now, "timed_out"))

    # -- what was seen -----------------------------------------------------------------------------------------------

    def _observation(self) -> Json:
        persisted = [ack for ack in self._acks if ack["ack_type"] == "persisted"]
        merged = [ack for ack in persisted if ack["seq"] is not None]
        statistics = [ack for ack in self._acks if ack["ack_type"] == "stats"]
        seen: Json = {
            "acks_in_order": self._acks,
            "cid_present": any(ack["cid"] is not None for ack in self._acks),
            "persisted_has_cid": any(ack["cid"] is not None for ack in merged),
            "persisted": persisted[-1] if persisted else None,
            "stats": statistics[-1] if statistics else None,
            "effective_conflation_ms_reported": any(ack["effective_conflation_ms"] is not None for ack in persisted),
            "durability": "strong" if self._given.get("txlog", True) else "weak",
            "server_log_has": Lines(self._server.log),
            "stream": self._server.stream,
            "topic_copies": self._server.copies,
            "client_sends": self._sends,
            "error": self._errors[0][1] if self._errors else None,
            "sdk_error": self._sdk_error,
            **self._client.observation(),
        }
        if self._errors:
            return seen | {"at_ms": self._errors[0][0]}
        if self._done_at is not None:
            return seen | {"at_ms": self._done_at}
        times = [ack["at_ms"] for ack in self._acks]
        return seen | {"at_ms": Span(min(times), max(times))} if times else seen


def _read(step: Json, given: Json) -> QueryCommand:
    bookmark, stop = step.get("bookmark"), None
    if "range" in step:
        try:
            bookmark, stop = queries.read_range(step["range"])
        except ValueError:
            bookmark = step["range"]
    name = step["op"]
    own = name not in PUBLISHES or "request" in step
    return QueryCommand(
        name=name,
        cid=step.get("cid"),
        asked=queries.asked(step.get("request", ()) if own else given.get("request", ())),
        seq=step.get("seq"),
        filter=step.get("filter"),
        bookmark=bookmark,
        stop=stop,
        top_n=step.get("top_n"),
    )


def observe(given: Json, when: list[Json]) -> Json:
    """Run a scenario."""
    if given.get("server", "ok") not in ("ok", "silent"):
        raise Uncovered(f"not known: a server that is {given['server']}")
    return _Scenario(given, when).run(when)


INTERPRETER = Interpreter(
    prefix="AMPS",
    given=frozenset(
        {
            *("client", "txlog", "request", "ack_conflation_ms", "sync_destinations", "async_destinations"),
            *("local_persist_ms", "downgrade", "upgrade", "downstream_ack_conflation_ms", "store_unacked"),
            *("server_last_seq", "store_discarded_up_to", "error_on_publish_gap", "log_end", "last_matching"),
            *("delivered_all_discarded", "received", "discarded", "records", "matching", "server"),
        }
    ),
    steps={
        **dict.fromkeys(_COMMANDS, _COMMAND_WORDS),
        "logon": frozenset({"cid", "server_last_seq", "timeout_ms"}),
        "reconnect": frozenset({"cid", "server_last_seq"}),
        "disconnect": frozenset(),
        "server_ack": frozenset({"ack_type", "cid", "seq", "status", "reason", "user_id", "password", "bookmark"}),
        "publish_flush": frozenset({"timeout_ms"}),
        "publish_range": frozenset({"from", "to"}),
        "tick_persisted": frozenset(),
        "resume": frozenset({"from"}),
        "restart": frozenset({"sub_id"}),
        "check": frozenset(),
    },
    expect=frozenset(
        {
            *("acks_in_order", "cid_present", "persisted_has_cid", "persisted", "stats", "durability"),
            *("effective_conflation_ms_reported", "server_log_has", "stream", "topic_copies", "client_sends"),
            *("error", "sdk_error", "at_ms", "by_ms", "not_before_ms", "resent", "unpersisted_count", "store_after"),
            *("failed_write_callbacks", "result", "missing_on_server", "connected", "resume_after"),
            *("delivered_to_app", "suppressed"),
        }
    ),
    observe=observe,
)
