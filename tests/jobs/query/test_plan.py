"""Batches of commands, and what their clients are told and given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from ackstream.jobs.query.job import run, withdraw
from ackstream.jobs.query.plan import SILENT_MS, ClientSession, QueryState, SubscriptionPlan, execute
from ackstream.jobs.query.records import TOO_LARGE, UNSERVED, QueryRequest, read
from ackstream.jobs.query.results import Acknowledged, Counted, Deleted, GroupMark, LogDelivered, Selected, Step
from ackstream.protocol.messages import SUPPORTED, AckType
from ackstream.protocol.queries import BEGINNING, Position, bookmark, end
from ackstream.settings import Query, Settings
from ackstream.settings.jobs import QueryRule

TOPIC = "orders"
ALL = ",".join(get_args(AckType))


class Server:
    """The state between batches; time and the log go on where that is said."""

    def __init__(self, limits: Query | None = None, topics: tuple[str, ...] = ()) -> None:
        self.state = QueryState()
        self.lasting = False
        self._limits, self._topics = limits or Query(interval="1ms"), topics
        self._known = self._newest = 0
        self._count = 0

    def command(self, name: str, client: str = "a", time: int = 0, **headers: str) -> QueryRequest:
        self._count += 1
        said = {"command": name, "cid": f"c{self._count}", "topic": TOPIC} | headers
        return read(client.encode(), [(key, text.encode()) for key, text in said.items()], f"0-{self._count}", time)

    def batch(
        self,
        *requests: QueryRequest,
        newest: int | None = None,
        now: int = 0,
        since: int | None = None,
        others: Sequence[int] = (),
    ) -> list[Step]:
        """Process a batch with records until ``now``, ``others`` of them not of clients; ``since``: the last before."""
        self._newest = self._newest if newest is None else newest
        plan = SubscriptionPlan(self.state, known=self._known, newest=self._newest, now=now)
        plan.deliver(requests, () if since is None else (since, *others, now))
        for request in requests:
            execute(plan, request, self._limits, self._topics)
        plan.close()
        self._known = self._newest
        self.lasting = plan.lasting
        # what is remembered is what goes on
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=QueryState)
        return plan.steps


def _plain(steps: list[Step]) -> list[object]:
    """Return type and reason of acks, and the kinds of other steps."""
    found: list[object] = []
    for step in steps:
        match step:
            case Acknowledged(ack=ack):
                found.append(ack.ack_type if ack.reason is None else (ack.ack_type, ack.reason))
            case GroupMark(mark=mark):
                found.append(mark)
            case LogDelivered(subscriptions=subscriptions, after=after, upto=upto):
                found.append(([one.sub_id for one in subscriptions], after, upto))
            case _:
                found.append(type(step))
    return found


def _asking(text: str) -> dict[str, str]:
    return {"ack": text}


@pytest.mark.parametrize(
    ("name", "headers", "steps"),
    [
        ("sow", _asking("received,processed,completed,stats"),
         ["received", "processed", "group_begin", Selected, "group_end", "completed", Counted]),
        ("sow", {**_asking("stats"), "top_n": "0"}, ["group_begin", "group_end", Counted]),
        ("sow_delete", {**_asking(ALL), "filter": "/x"},
         ["received", "processed", Deleted, "completed", Counted, "persisted"]),
        ("sow_delete", {**_asking(ALL), "sow_keys": "k"}, ["received", "processed", Deleted, Counted, "persisted"]),
        ("flush", _asking("processed,completed,persisted"), ["processed", "completed", "persisted"]),
        ("subscribe", _asking("processed"), ["processed"]),
        ("subscribe", _asking("processed,completed,persisted"), ["processed"]),
        ("subscribe", {**_asking("processed,completed,persisted"), "bookmark": "NOW"},
         ["processed", "completed", "persisted"]),
        ("unsubscribe", {**_asking("processed"), "sub_id": "unknown"}, ["processed"]),
        ("logon", _asking("processed"), ["processed"]),
        ("heartbeat", {**_asking("processed"), "options": "start,1"}, ["processed"]),
        ("heartbeat", _asking("processed"), [("processed", "logon required")]),
        ("subscribe", {**_asking("processed,completed"), "filter": "/x =="}, [("processed", "bad filter")]),
        ("subscribe", {**_asking("processed"), "bookmark": "1|1|1|00000000"}, [("processed", "invalid bookmark")]),
        ("sow", {**_asking("persisted"), "topic": "x"}, [("processed", "not supported")]),
        ("sow", {**_asking("completed"), "filter": "/x =="}, []),
    ],
)  # fmt: skip
def test_the_steps_of_a_command(name: str, headers: dict[str, str], steps: list[object]) -> None:
    server = Server()
    assert _plain(server.batch(server.command(name, **headers))) == steps


@pytest.mark.parametrize("name", [name for name in SUPPORTED if name not in UNSERVED])
def test_a_command_has_only_the_acknowledgements_of_the_matrix(name: str) -> None:
    server = Server()
    supported = SUPPORTED[name]
    headers = {"filter": "/x", "sub_id": "s", "options": "start,1" if name == "heartbeat" else ""}
    if name == "subscribe":
        headers["bookmark"] = "EPOCH"
    steps = server.batch(server.command(name, ack=",".join(supported), **headers))
    told = {step.ack.ack_type for step in steps if isinstance(step, Acknowledged)}
    told |= {"stats" for step in steps if isinstance(step, Counted)}
    assert told == set(supported)


def test_a_replay_ends_where_the_log_ends_then_new_messages_follow() -> None:
    server = Server()
    server.batch(newest=4)
    steps = server.batch(server.command("subscribe", bookmark="EPOCH", sub_id="s", ack="completed,persisted"))
    assert _plain(steps) == [(["s"], BEGINNING, end(4)), "completed", "persisted"]
    assert [step.ack.bookmark for step in steps if isinstance(step, Acknowledged)] == [bookmark(end(4), TOPIC)] * 2
    assert server.lasting
    assert _plain(server.batch(newest=6)) == [(["s"], end(4), end(6)), "persisted"]
    assert not server.lasting
    assert server.batch() == []


def test_a_range_is_over_with_its_last_message() -> None:
    server = Server()
    server.batch(newest=4)
    first, last = Position(1, 0, 5), Position(2, 1, 6)
    text = f"[{bookmark(first, TOPIC)}:{bookmark(last, TOPIC)}]"
    steps = server.batch(server.command("subscribe", bookmark=text, sub_id="s", ack="completed,persisted"))
    assert _plain(steps) == [(["s"], Position(1, 0, 4), last), "completed"]
    assert server.batch(newest=5) == []


def test_a_name_is_for_one_subscription_unless_it_is_to_be_replaced() -> None:
    server = Server()
    server.batch(server.command("subscribe", sub_id="s"))
    assert _plain(server.batch(server.command("subscribe", sub_id="s", ack="processed"))) == [
        ("processed", "subscription already exists")
    ]
    server.batch(server.command("subscribe", sub_id="s", topic="trades", options="replace"))
    (live,) = server.batch(newest=1)
    assert isinstance(live, LogDelivered)
    assert [one.topic for one in live.subscriptions] == ["trades"]
    server.batch(server.command("subscribe", client="b", sub_id="s"))
    assert len(server.state.subscriptions) == 2


@pytest.mark.parametrize(("sub_id", "left"), [("one", ["two"]), ("all", []), ("three", ["one", "two"])])
def test_unsubscribing_ends_one_or_all_of_the_clients_subscriptions(sub_id: str, left: list[str]) -> None:
    server = Server()
    server.batch(*[server.command("subscribe", sub_id=name) for name in ("one", "two")])
    server.batch(server.command("subscribe", client="b", sub_id="others"))
    server.batch(server.command("unsubscribe", sub_id=sub_id))
    assert [one.sub_id for one in server.state.subscriptions] == [*left, "others"]


def test_a_logon_ends_the_subscriptions_of_an_earlier_session() -> None:
    server = Server()
    server.batch(server.command("subscribe"), server.command("subscribe", client="b"))
    server.batch(server.command("logon"))
    assert [one.client for one in server.state.subscriptions] == ["b"]


def test_a_logon_that_is_sent_again_is_answered_again_and_ends_nothing() -> None:
    server = Server()
    for _ in range(2):
        steps = server.batch(server.command("logon", cid="same", options="heartbeat=10s", ack="processed"))
        assert _plain(steps) == ["processed"]
        server.batch(server.command("subscribe", sub_id="s", options="replace"))
    assert not server.batch(server.command("logon", cid="same", options="heartbeat=10s"))
    assert len(server.state.subscriptions) == 1


def test_a_silent_client_loses_its_subscriptions_and_its_next_heartbeat_is_refused() -> None:
    server = Server()
    server.batch(server.command("logon", options="heartbeat=10s"), server.command("subscribe"))
    assert len(server.batch(newest=1, now=20_000)) == 1
    server.batch(server.command("heartbeat", time=20_000, options="beat"), now=20_000)
    assert len(server.batch(newest=2, now=40_000)) == 1
    late = server.command("heartbeat", time=40_001, options="beat", ack="processed")
    assert _plain(server.batch(late, newest=3, now=40_001)) == [(["c2"], end(2), end(3)), "processed"]
    assert server.batch(newest=4, now=60_002) == []
    assert _plain(server.batch(server.command("heartbeat", options="beat", ack="processed"), now=60_003)) == [
        ("processed", "logon required")
    ]


@pytest.mark.parametrize("away_ms", [20_000, 60_000, 86_400_000])
def test_time_in_which_kafka_was_away_is_no_clients_silence(away_ms: int) -> None:
    server = Server()

    def beat(client: str, time: int) -> QueryRequest:
        return server.command("heartbeat", client, time=time, options="beat", ack="processed")

    server.batch(*(server.command("logon", client, options="heartbeat=10s") for client in "abc"))
    server.batch(beat("a", 9_000), beat("b", 9_500), now=10_000)
    back = 10_000 + away_ms
    # the clients send what they had kept one after the other
    assert _plain(server.batch(beat("a", back), since=10_000, now=back)) == ["processed"]
    answers = server.batch(beat("b", back + 5_001), since=back, others=[back + 2_000], now=back + 5_001)
    assert _plain(answers) == ["processed"]
    assert list(server.state.sessions) == ["a", "b"], "c was silent for 10 s before, and for 10 s that count"
    # a client that is silent afterwards
    for now in range(back + 10_000, back + 20_001, 5_000):
        server.batch(beat("b", now), since=now - 5_000, now=now)
    assert list(server.state.sessions) == ["a", "b"]
    server.batch(since=back + 20_000, now=back + 20_001)
    assert list(server.state.sessions) == ["b"]


@pytest.mark.parametrize("skew_ms", [0, 5_000, 11_000, 60_000])
def test_a_silent_client_ends_although_clocks_of_brokers_are_apart(skew_ms: int) -> None:
    server = Server()
    server.batch(server.command("logon", options="heartbeat=10s"))
    read_until = 0
    for time in range(1_000, 61_000, 1_000):
        server.batch(since=read_until, others=[time], now=time + skew_ms)
        read_until = time + skew_ms
    assert list(server.state.sessions) == []


@pytest.mark.parametrize("since_beat_ms", [0, 5_000, 9_999])
def test_a_client_has_half_an_interval_to_write_after_an_outage(since_beat_ms: int) -> None:
    server = Server()
    server.batch(server.command("logon", options="heartbeat=10s"))
    server.batch(now=since_beat_ms, since=0)
    back = since_beat_ms + 60_000
    server.batch(now=back, since=since_beat_ms)
    server.batch(now=back + 5_000, since=back)
    assert list(server.state.sessions) == ["a"]
    server.batch(now=back + 20_000, since=back + 19_500)
    assert list(server.state.sessions) == []


def test_the_answer_to_a_heartbeat_says_up_to_where_the_clients_subscriptions_have_everything() -> None:
    server = Server()
    server.batch(server.command("logon", options="heartbeat=10s"), server.command("subscribe", sub_id="s"))
    beat = server.command("heartbeat", options="beat", ack="processed")
    delivered, answer = server.batch(beat, newest=7)
    assert isinstance(delivered, LogDelivered)
    assert isinstance(answer, Acknowledged)
    assert (delivered.upto, answer.ack.bookmark) == (end(7), bookmark(end(7), ""))
    # without a request for bookmarks that is all
    assert _plain(server.batch(newest=8)) == [(["s"], end(7), end(8))]


def test_a_subscription_is_no_session_of_a_client_that_lost_its_own() -> None:
    """Its heartbeats would be answered, and its earlier subscriptions would never come back."""
    server = Server()
    server.batch(server.command("logon", options="heartbeat=10s"), server.command("subscribe", sub_id="s"))
    server.batch(now=20_001)
    subscribe = server.command("subscribe", time=20_002, sub_id="t")
    beat = server.command("heartbeat", time=20_003, ack="processed")
    assert _plain(server.batch(subscribe, beat, now=20_003)) == [("processed", "logon required")]
    (stored,) = server.state.sessions.values()
    assert stored.cid is None


@pytest.mark.parametrize(("name", "options"), [("logon", "heartbeat=10s"), ("heartbeat", "start,10")])
def test_a_session_that_was_begun_without_an_id_has_heartbeats(name: str, options: str) -> None:
    server = Server()
    begin = server.command(name, cid="", options=options)
    beat = server.command("heartbeat", options="beat", ack="processed")
    assert _plain(server.batch(server.command("subscribe"), begin, beat)) == ["processed"]


def test_bookmarks_come_as_often_as_the_client_wants_and_the_last_one_is_not_forgotten() -> None:
    server = Server()
    server.batch(server.command("logon", options="ack_conflation=1s"))
    server.batch(server.command("subscribe", bookmark="NOW", ack="persisted"), now=100)
    batches = [server.batch(newest=number, now=100 + number * 300) for number in range(1, 6)]
    counts = [sum(isinstance(step, Acknowledged) for step in steps) for steps in batches]
    assert counts == [0, 0, 0, 1, 0]
    assert _plain(server.batch(now=2_400)) == ["persisted"]
    assert server.batch(now=4_000) == []


def test_a_raised_interval_is_acknowledged() -> None:
    server = Server(Query(interval="100ms"))
    answers = [
        step.ack.effective_conflation_ms
        for asked in ("50ms", "100ms")
        for step in server.batch(server.command("logon", options=f"ack_conflation={asked}", ack="processed"))
        if isinstance(step, Acknowledged)
    ]
    assert answers == [100, None]


def test_deletes_are_acknowledged_merged_by_their_numbers_and_before_a_flush() -> None:
    server = Server()
    deletes = [
        server.command("sow_delete", ack="persisted", seq=str(seq), filter="/x ==" if seq == 3 else "/x")
        for seq in range(1, 6)
    ]
    flush = server.command("flush", ack="persisted")
    after = server.command("sow_delete", ack="persisted", filter="/x")
    steps = server.batch(*deletes, flush, after)
    acks = [step.ack for step in steps if isinstance(step, Acknowledged)]
    told = [(ack.first, ack.seq, ack.cid, ack.reason) for ack in acks]
    assert told == [
        (1, 2, None, None),
        (3, 3, None, "bad filter"),
        (4, 5, None, None),
        (None, None, "c6", None),
        (None, None, "c7", None),
    ]


def test_a_query_with_a_subscription_reports_the_position_after_which_that_goes_on() -> None:
    server = Server()
    steps = server.batch(server.command("sow_and_subscribe", **_asking("completed")), newest=7)
    (ack,) = [step.ack for step in steps if isinstance(step, Acknowledged)]
    assert (ack.ack_type, ack.bookmark) == ("completed", bookmark(end(7), TOPIC))


def test_topics_that_there_are_not_are_refused() -> None:
    server = Server(topics=("orders*",))
    good = server.command("sow", topic="orders-1", ack="processed")
    bad = server.command("sow", topic="trades", ack="processed")
    assert _plain(server.batch(good, bad))[-1] == ("processed", "invalid topic")


def test_a_replayed_acknowledgement_has_the_same_id() -> None:
    def run() -> list[str]:
        server = Server()
        server.batch(server.command("subscribe", bookmark="NOW"), newest=1)
        steps = server.batch(server.command("sow"), server.command("sow_delete", filter="/x", seq="1"), newest=2)
        return [step.id for step in steps if isinstance(step, (Acknowledged, GroupMark, Counted))]

    assert run() == run()
    assert len(set(run())) == len(run())


def test_a_heartbeat_alone_need_not_be_stored() -> None:
    server = Server()
    server.batch(server.command("logon"), server.command("heartbeat", options="start,10"))
    assert server.lasting
    server.batch(server.command("heartbeat", options="start,10"), server.command("heartbeat", options="beat"))
    assert not server.lasting


def test_a_client_without_a_heartbeat_is_forgotten_when_it_has_been_silent_for_long() -> None:
    server = Server()
    server.batch(server.command("subscribe"))
    server.batch(now=SILENT_MS)
    assert [one.client for one in server.state.subscriptions] == ["a"]
    server.batch(now=SILENT_MS + 1)
    assert server.state == QueryState()
    assert server.lasting


def test_a_client_has_a_limited_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackstream.jobs.query.plan.MAX_SUBSCRIPTIONS", 2)
    server = Server()
    asked = [server.command("subscribe", **_asking("processed")) for _ in range(3)]
    assert _plain(server.batch(*asked, server.command("subscribe", "b")))[-1] == ("processed", "too many subscriptions")
    assert [one.client for one in server.state.subscriptions] == ["a", "a", "b"]
    instead = server.command("subscribe", sub_id="c1", options="replace", **_asking("processed"))
    assert _plain(server.batch(instead)) == ["processed"]


def test_a_command_that_nobody_foresaw_is_refused_and_the_next_one_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: SubscriptionPlan, request: QueryRequest, limits: Query, *_topics: object) -> None:
        if request.reason is not None:
            execute(plan, request, limits)
            return
        plan.steps.append(Selected(request))
        if request.sub_id == "c1":
            raise KeyError("unforeseen")

    monkeypatch.setattr("ackstream.jobs.query.job.execute", fail)
    server = Server()
    plan = SubscriptionPlan(QueryState(), known=0, newest=0, now=0)
    for _ in range(2):
        run(plan, server.command("sow"), Settings())
    assert _plain(plan.steps) == [("processed", "internal error"), Selected]


def test_the_client_of_a_command_that_is_too_large_learns_of_it() -> None:
    server = Server()
    assert _plain(server.batch(server.command("sow", filter="/x ==").notified(TOO_LARGE))) == [
        ("processed", "command too large")
    ]


STORED = (
    b'{"sessions":{"c1":{"cid":"l","interval_ms":500,"lease_ms":9000,"seen":77}},"subscriptions":[{"client":"c1",'
    b'"sub_id":"s","cid":"4","origin":"0-7","topic":"orders","filter":"/a = 1","bookmarked":true,"told":41,'
    b'"due":1200}]}'
)


def test_a_stored_state_is_read_and_written_as_it_always_was() -> None:
    state = msgspec.json.decode(STORED, type=QueryState)
    assert state.sessions["c1"] == ClientSession("l", 500, 9_000, 77)
    (subscription,) = state.subscriptions
    assert (subscription.acknowledged_through, subscription.due) == (41, 1_200)
    assert msgspec.json.encode(state) == STORED


READERS = QueryRule(clients=("desk-*",), topics=("orders*",))
OPERATORS = QueryRule(clients=("ops",), topics=("orders", "trades"), delete=True)


@pytest.mark.parametrize(
    ("command", "client", "topic", "entitled"),
    [
        ("sow", "desk-1", "orders-eu", True),
        ("subscribe", "desk-1", "orders", True),
        ("sow_and_subscribe", "desk-1", "orders", True),
        ("sow_delete", "desk-1", "orders", False),
        ("sow", "desk-1", "trades", False),
        ("subscribe", "desk", "orders", False),
        ("sow_and_subscribe", "stranger", "orders", False),
        ("sow_delete", "ops", "trades", True),
        ("sow_delete", "ops", "orders-eu", False),
        ("sow", "ops", "trades", True),
    ],
)
def test_a_client_queries_and_deletes_only_where_it_is_entitled_to(
    command: str, client: str, topic: str, *, entitled: bool
) -> None:
    server = Server(Query(entitlements=(READERS, OPERATORS)))
    filters = {"filter": "/x = 1"} if command == "sow_delete" else {}
    steps = server.batch(server.command(command, client, topic=topic, ack="processed", **filters))
    assert isinstance(steps[0], Acknowledged)
    assert steps[0].ack.reason == (None if entitled else "not entitled")
    worked = any(isinstance(step, (Selected, Deleted)) for step in steps) or bool(server.state.subscriptions)
    assert worked == entitled


def test_without_entitlements_everyone_may_query_and_delete() -> None:
    assert Query().entitles("anyone", "anything", delete=True)


@pytest.mark.parametrize("command", ["logon", "heartbeat", "flush", "unsubscribe"])
def test_commands_without_a_topic_need_no_entitlement(command: str) -> None:
    server = Server(Query(entitlements=(READERS,)))
    options = {"options": "start,5"} if command == "heartbeat" else {}
    (step, *_) = server.batch(server.command(command, "stranger", ack="processed", **options))
    assert isinstance(step, Acknowledged)
    assert step.ack.reason is None


def test_a_client_with_a_subscription_that_must_not_go_on_has_to_log_on_again() -> None:
    server = Server()
    for client in ("a", "b"):
        server.batch(server.command("logon", client))
        server.batch(
            server.command("subscribe", client, topic="orders"), server.command("subscribe", client, topic="open")
        )
    reasons = withdraw(server.state, lambda one: "why" if (one.client, one.topic) == ("a", "orders") else None)
    assert reasons == {"a": "why"}
    assert {one.client for one in server.state.subscriptions} == {"b"}
    asked = {client: server.command("heartbeat", client, ack="processed") for client in ("a", "b")}
    found = {
        step.ack.client: step.ack.reason for step in server.batch(*asked.values()) if isinstance(step, Acknowledged)
    }
    assert found == {"a": "logon required", "b": None}
