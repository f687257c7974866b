""""""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.protocol.ditto.labels import (
    BUILT_IN,
    GRACE_MS,
    LEASE_MS,
    LIVE_RESPONSE,
    MAX_LEASE_MS,
    SEARCH_PERSISTED,
    TWIN_PERSISTED,
    Claim,
    Declarations,
    DeclaredTimes,
    LabelsTakenError,
    check_declared,
    parse_declared,
    parse_label,
)
from ackstream.protocol.errors import DittoError, label_not_unique
from tests.outcomes import outcome, refusal
from tests.prose import each

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:"


@given(st.text(LETTERS, min_size=3, max_size=165), st.sampled_from(["", "{{connection:id}}:", "{{ a:b\t}}:"]))
def test_three_to_165_characters_are_a_label_whatever_the_placeholder(text: str, prefix: str) -> None:
    assert parse_label(prefix + text) == prefix + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab",
        "a" * 166,
        "abc\n",
        "äbc",
        "{{connection:id}}",
        "{{connection:id}}:ab",
        "{{connection:id}}:" + "a" * 166,
        "{{connection:id}}:{{connection:id}}:abc",
        "{{connection:id }}abc",
        "{{\u00a0connection:id}}:abc",
        "x" * 100_000,
        "{{" + " " * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    error = refusal(parse_label, text)
    assert (error.status, error.error) == (400, "acknowledgement:label.invalid")
    assert error.href is not None


def test_a_long_placeholder_does_not_count() -> None:
    text = "{{" + " " * 1_000 + "connection:id}}:abc"
    assert parse_label(text) == text


@given(st.text())
def test_any_text_is_a_label_or_refused(text: str) -> None:
    label = outcome(parse_label, text)
    if isinstance(label, DittoError):
        assert not re.fullmatch("[a-zA-Z0-9_:-]{3,165}", text)
    else:
        assert label == text


@each("labels", "builtin-order")
def test_prose_built_in_labels(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert list(BUILT_IN) == expect["labels"]


@each("labels", "builtin-contains-None")
def test_prose_built_in_or_not(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert (given_["label"] in BUILT_IN) is expect["builtIn"]


@each("labels", "builtin-equals-plain-label")
def test_prose_a_built_in_label_equals_a_parsed_one(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert (parse_label("twin-persisted") == TWIN_PERSISTED) is expect["equal"]
    assert list(BUILT_IN)[1:] == [LIVE_RESPONSE, SEARCH_PERSISTED]


@each("labels", "compare-")
def test_prose_labels_compare_as_texts(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    left, right = map(parse_label, given_["compare"])
    assert (left > right) - (left < right) == expect["sign"]


SECOND = 1_000


@dataclass
class Log:
    """A topic of one partition with append times; compaction keeps the last record of each key, at its offset."""

    records: list[tuple[str, bytes | None, int, int]] = field(default_factory=list)
    time: int = 0

    def append(self, key: str, claim: Claim | None) -> int:
        value = None if claim is None else msgspec.json.encode(claim)
        self.records.append((key, value, len(self.records), self.time))
        return len(self.records) - 1

    def read(self, start: int = 0, end: int | None = None) -> Declarations:
        found = Declarations()
        for record in self.records[start:end]:
            found.apply(*record)
        return found

    def compacted(self, upto: int, *, tombstones: bool = True) -> Declarations:
        """Read what is left when the cleaner has run over the first records."""
        last = {key: offset for key, _, offset, _ in self.records[:upto]}
        found = Declarations()
        for key, value, offset, time in self.records:
            if offset >= upto or (last[key] == offset and (value is not None or tombstones)):
                found.apply(key, value, offset, time)
        return found


def holders(log: Log, found: Declarations) -> dict[str, frozenset[str]]:
    """The labels of each claim that holds them now."""
    held = {key: found.get(key) for key, *_ in log.records if found.holds(key, log.time)}
    return {key: entry.claim.labels for key, entry in held.items() if entry is not None}


def claim(*labels: str, group: str | None = None, lease: int = LEASE_MS) -> Claim:
    return Claim(frozenset(labels), group, lease)


def renew(log: Log, key: str) -> None:
    entry = log.read().get(key)
    assert entry is not None
    log.append(key, entry.renewal())


@each("labels", "declare-", but=("declare-pubsub",))
def test_declarations_as_in_ditto(given_: dict[str, Any], expect: dict[str, Any]):
    log, results = Log(), []
    for number, wanted in enumerate(given_["declarations"]):
        key = str(number)
        log.append(key, claim(*wanted["labels"], group=wanted["group"]))
        if log.read().holds(key, log.time):
            results.append({"ok": True})
        else:
            # who is refused withdraws
            log.append(key, None)
            results.append({"ok": False, "error": label_not_unique().to_dict()})
    assert results == expect["results"]


def test_a_label_that_is_taken_is_named_with_the_time_after_which_that_of_a_killed_party_is_free() -> None:
    error = LabelsTakenError(frozenset({"a1"}), [claim("a1", "b2", group="g")])
    assert str(error).endswith(": a1 (by the group g). Those of a killed party are free after 30 s.")


@each("labels", "declare-pubsub-failAck")
def test_a_label_that_is_taken_is_refused_on_whatever_node(given_: dict[str, Any], expect: dict[str, Any]):
    assert given_["second subscriber declares a taken label on"] in ("same node", "other node")
    log = Log()
    log.append("first", claim("a1"))
    log.append("second", claim("a1"))
    assert log.read().holds("second", log.time) is expect["ok"]
    assert label_not_unique().error == expect["error"]["error"]


@each("labels", "declare-pubsub-remove")
def test_a_label_that_was_released_is_free_at_once(given_: dict[str, Any], expect: dict[str, Any]):
    assert given_
    log = Log()
    log.append("first", claim("a1"))
    log.append("first", None)
    log.append("second", claim("a1"))
    assert log.read().holds("second", log.time) is expect["ok"]


def test_who_does_not_renew_loses_its_labels_when_the_lease_ends():
    log = Log()
    log.append("first", claim("a1", lease=10 * SECOND))
    log.time = 10 * SECOND - 1
    log.append("early", claim("a1"))
    assert not log.read().holds("early", log.time)
    log.append("early", None)
    log.time = 10 * SECOND
    log.append("second", claim("a1"))
    assert log.read().holds("second", log.time)
    assert holders(log, log.read()) == {"second": {"a1"}}


def test_a_renewal_keeps_the_rank_of_the_claim():
    log = Log()
    log.append("first", claim("a1"))
    log.time = 5 * SECOND
    log.append("second", claim("a1"))
    renew(log, "first")
    assert holders(log, log.read()) == {"first": {"a1"}}


def test_a_client_that_starts_behind_a_compaction_is_refused_what_is_held():
    log = Log()
    log.append("first", claim("a1"))
    log.time = 5 * SECOND
    renew(log, "first")
    log.append("second", claim("a1"))
    for reader in (log.compacted(2), log.compacted(2, tombstones=False), log.read(1)):
        assert reader.holds("first", log.time)
        assert not reader.holds("second", log.time)


FORGED = [
    {"since": 0, "until": 2**60},
    {"since": -1, "until": 2**60, "lease_ms": 2**60},
    {"since": 0, "until": 0},
    {"since": 0},
    {"until": 2**60},
]


@pytest.mark.parametrize("forged", FORGED, ids=map(str, FORGED))
def test_a_forged_renewal_takes_no_label_from_who_holds_it(forged: dict[str, int]):
    log = Log()
    log.append("holder", claim("fleet:done"))
    log.time = 5 * SECOND
    log.records.append(("thief", msgspec.json.encode({"labels": ["fleet:done"], **forged}), 1, log.time))
    assert holders(log, log.read()) == {"holder": {"fleet:done"}}
    renew(log, "holder")
    assert holders(log, log.read()) == {"holder": {"fleet:done"}}


@pytest.mark.parametrize("group", [None, "g"])
def test_an_early_claim_gets_no_other_labels_and_no_other_group_by_a_renewal(group: str | None):
    log = Log()
    log.append("thief", claim("a-free-one", group=group))
    log.append("holder", claim("fleet:done"))
    log.append("thief", claim("fleet:done", group=group))
    assert holders(log, log.read()) == {"holder": {"fleet:done"}}
    log.append("other", claim("a-free-one", group="g"))
    log.append("thief", claim("a-free-one", group="h"))
    assert log.read().holds("other", log.time)
    assert not log.read().holds("thief", log.time)


def test_a_renewal_that_comes_too_late_takes_nothing_back():
    log = Log()
    log.append("first", claim("a1", lease=10 * SECOND))
    late = log.read().get("first")
    assert late is not None
    log.time = 20 * SECOND
    log.append("second", claim("a1"))
    log.append("first", late.renewal())
    for reader in (log.read(), log.compacted(3)):
        assert reader.holds("second", log.time)
        assert not reader.holds("first", log.time)


def test_a_renewal_at_the_very_end_of_the_lease_is_too_late():
    log = Log()
    log.append("first", claim("a1", lease=10 * SECOND))
    log.time = 10 * SECOND
    log.append("second", claim("a1"))
    assert log.read().holds("second", log.time)
    log.append("first", claim("a1"))
    assert holders(log, log.read()) == {"second": {"a1"}}


def test_a_renewal_that_comes_too_late_is_a_new_claim_where_the_label_is_free():
    log = Log()
    log.append("first", claim("a1", lease=10 * SECOND))
    late = log.read().get("first")
    assert late is not None
    log.time = 20 * SECOND
    log.append("first", late.renewal())
    assert log.read().holds("first", log.time)


def test_a_lease_is_cut_to_the_longest_one():
    log = Log()
    log.append("first", claim("a1", lease=10 * MAX_LEASE_MS))
    assert log.read().holds("first", MAX_LEASE_MS - 1)
    assert not log.read().holds("first", MAX_LEASE_MS)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"labels":1}', b'{"labels":["a"],"lease_ms":"x"}', b"\xff"])
def test_what_cannot_be_read_claims_nothing(value: bytes):
    found = Declarations()
    assert found.apply("first", value, 0, 0) is None
    assert not found.holds("first", 0)
    assert found.get("first") is None


def test_claims_that_have_ended_can_be_forgotten():
    log = Log()
    log.append("first", claim("a1", lease=SECOND))
    log.append("second", claim("a2"))
    found = log.read()
    found.forget(SECOND)
    assert found.get("first") is None
    assert found.holds("second", SECOND)


@each("labels", "ws-ack-not-declared", "ws-declared-ack", "conn-ack-not-declared", "conn-ack-target-issued")
def test_only_declared_labels_may_be_sent(given_: dict[str, Any], expect: dict[str, Any]):
    declared = given_.get("declaredAcks", given_.get("sourceDeclaredAcks"))
    # in this case the acknowledgement is written in words
    label = given_["ack"]["label"] if "ack" in given_ else given_["ack via source"]
    if expect.get("forwarded"):
        check_declared(label, declared)
        return
    with pytest.raises(DittoError) as caught:
        check_declared(label, declared)
    wanted = expect.get("error") or expect["publishedAtReplyTarget"]
    assert wanted.items() <= caught.value.to_dict().items()


# -- the law -----------------------------------------------------------------------------------------------------------

ACTION = st.tuples(
    st.sampled_from(["claim", "renew", "stale renewal", "release", "wait"]),
    st.integers(0, 5),
    st.sets(st.sampled_from(["a1", "a2", "a3"]), min_size=1),
    st.sampled_from([None, "g1", "g2"]),
    st.integers(0, 40).map(lambda seconds: seconds * SECOND),
)


class Clients:
    """Clients that behave: only who holds renews, with what it read last, and who is refused withdraws."""

    def __init__(self) -> None:
        self.log = Log()
        self._names = count()
        self._held: dict[int, str] = {}
        self._seen: dict[str, Claim] = {}

    def act(self, action: str, client: int, labels: set[str], group: str | None, seconds: int) -> None:
        log, key = self.log, self._held.get(client)
        if action == "wait":
            log.time += seconds
        elif action == "claim" and key is None:
            self._take(client, f"c{next(self._names)}", Claim(frozenset(labels), group))
        elif action == "release" and key is not None:
            log.append(self._held.pop(client), None)
        elif action == "renew" and key is not None:
            entry = log.read().get(key)
            assert entry is not None
            self._seen[key] = entry.renewal()
            self._take(client, key, entry.renewal())
        elif action == "stale renewal" and key in self._seen:
            # sent once more, because the broker did not answer
            self._take(client, key, self._seen[key])

    def _take(self, client: int, key: str, wanted: Claim) -> None:
        self.log.append(key, wanted)
        if self.log.read().holds(key, self.log.time):
            self._held[client] = key
        else:
            self._held.pop(client, None)
            self.log.append(key, None)


@given(st.lists(ACTION, max_size=30), st.data())
@settings(max_examples=200)
def test_all_readers_agree_on_the_claims_that_they_have_read_from_their_first_record(
    actions: list[Any], data: st.DataObject
):
    clients = Clients()
    for action in actions:
        clients.act(*action)
    log = clients.log
    whole = holders(log, log.read())
    first = {key: (offset, time) for key, _, offset, time in reversed(log.records)}

    def later(held: dict[str, frozenset[str]], start: int, time: int) -> dict[str, frozenset[str]]:
        return {key: labels for key, labels in held.items() if first[key][0] >= start and first[key][1] >= time}

    upto = data.draw(st.integers(0, len(log.records)))
    for tombstones in (True, False):
        found = holders(log, log.compacted(upto, tombstones=tombstones))
        assert later(found, upto, 0) == later(whole, upto, 0)
    start = data.draw(st.integers(0, max(0, len(log.records) - 1)))
    began = log.records[start][3] + MAX_LEASE_MS if log.records else 0
    assert later(holders(log, log.read(start)), start, began) == later(whole, start, began)


FORGERY = st.tuples(
    st.integers(0, 2),
    st.sets(st.sampled_from(["a1", "a2"]), min_size=1),
    st.sampled_from([None, "g1"]),
    st.none() | st.integers(-1, 40) | st.just(2**60),
    st.none() | st.integers(-1, 40_000) | st.just(2**60),
    st.integers(0, 2**60),
    st.integers(0, 9).map(lambda seconds: seconds * SECOND),
)


@given(st.lists(FORGERY, max_size=12), st.lists(FORGERY, max_size=12))
@settings(max_examples=300)
def test_whatever_others_write_under_their_keys_who_holds_a_label_and_renews_keeps_it(
    before: list[Any], after: list[Any]
):
    log = Log()

    def forge(attacker: int, labels: set[str], group: str | None, since: Any, until: Any, lease: int, wait: int):
        log.time += wait
        forged = {"labels": labels, "group": group, "since": since, "until": until, "lease_ms": lease}
        log.records.append((f"attacker-{attacker}", msgspec.json.encode(forged), len(log.records), log.time))

    for forgery in before:
        forge(*forgery)
    log.append("own", claim("a1"))
    held = log.read().holds("own", log.time)
    for forgery in after:
        forge(*forgery)
        assert not held or log.read().holds("own", log.time)
        renew(log, "own")
        assert not held or log.read().holds("own", log.time)


@given(st.lists(ACTION, max_size=30))
@settings(max_examples=200)
def test_no_two_hold_what_conflicts_and_who_holds_keeps_it_while_it_is_live(actions: list[Any]):
    clients = Clients()
    for action in actions:
        clients.act(*action)
    log = clients.log
    now = Declarations()
    holding: set[str] = set()
    for key, value, offset, time in log.records:
        ended = {name for name in holding if (entry := now.get(name)) is None or entry.expires <= time}
        now.apply(key, value, offset, time)
        holds = {name for name, *_ in log.records if now.holds(name, time)}
        assert holding - ended - {key} <= holds
        claims = [entry.claim for name in holds if (entry := now.get(name)) is not None]
        assert not any(one.conflicts(other) for one in claims for other in claims if one is not other)
        holding = holds


@pytest.mark.parametrize("label", BUILT_IN)
def test_a_built_in_label_cannot_be_declared(label: str):
    with pytest.raises(DittoError) as refused:
        parse_declared(label)
    assert (refused.value.status, refused.value.error) == (400, "acknowledgement:ditto.acklabel.forbidden")
    claims = Declarations()
    assert claims.apply("k", msgspec.json.encode(Claim(frozenset({label, "a-ack"}))), 0, 0) is None
    assert not claims.holds("k", 1)


def test_any_other_label_can_be_declared():
    assert [parse_declared(text) for text in ("abc", "twin-persisted-too")] == ["abc", "twin-persisted-too"]
    with pytest.raises(DittoError, match="is invalid"):
        parse_declared("no")


SPANS = st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 40_000)), max_size=12)


@given(SPANS, st.integers(0, 400_000), st.randoms(use_true_random=False))
def test_a_label_is_declared_until_one_lease_after_the_last_of_any_claim_in_whatever_order_they_are_read(
    spans: list[tuple[int, int]], time: int, chance: Any
):
    expected = any(start <= time < start + length + GRACE_MS for start, length in spans)
    chance.shuffle(spans)
    declared = DeclaredTimes({})
    for start, length in spans:
        declared.apply(msgspec.json.encode(Claim(frozenset({"a-ack"}), None, length)), start)
    assert declared.covers("a-ack", time) is expected
    assert not declared.covers("b-ack", time)
    declared.forget(time)
    assert declared.covers("a-ack", time) is expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"garbage",
        b'{"labels":["a-ack"],"lease_ms":0}',
        b'{"labels":["live-response"]}',
        b'{"labels":["a-ack"],"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
    ids=["tombstone", "empty", "garbage", "no-lease", "built-in", "nested"],
)
def test_what_is_no_claim_declares_nothing(value: bytes | None):
    declared = DeclaredTimes({})
    declared.apply(value, 1)
    assert declared.spans == {}


def test_a_lease_that_is_too_long_declares_no_longer():
    declared = DeclaredTimes({})
    declared.apply(msgspec.json.encode(Claim(frozenset({"a-ack"}), None, 10**9)), 0)
    assert declared.spans == {"a-ack": [(0, MAX_LEASE_MS + GRACE_MS)]}
