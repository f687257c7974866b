from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from ackstream.protocol.ditto.correlation_ids import (
    MAX_BYTES,
    ForwardedIds,
    Latest,
    RecentIds,
    correlation_id,
    is_too_long,
    of_spring,
    shown_id,
    unguessable,
    wire_id,
)
from tests.prose import each

OF_SPRING = [
    (bytes.fromhex("0d2c7a9e5b1f4e6a8c3d2b1a09f8e7d6"), "0D2C7A9E5B1F4E6A8C3D2B1A09F8E7D6"),
    # version 4 and the variant, and UTF-8 by chance
    (b"AAAAAAJ\xc3\xa9AAAAAAA", "4141414141414AC3A941414141414141"),
    (b"AAAAAAz\xc3\xa9AAAAAAA", "AAAAAAzéAAAAAAA"),
    (b"order-JJ34567890", "order-JJ34567890"),
    (b"\xff", "FF"),
]


@pytest.mark.parametrize(("value", "text"), OF_SPRING)
def test_the_bytes_of_a_random_uuid_are_hexadecimal_and_text_is_text(value: bytes, text: str) -> None:
    assert of_spring(value) == text


@pytest.mark.parametrize(
    ("record_headers", "headers", "identity"),
    [
        ([("correlation-id", b"of-record")], {"correlation-id": "of-json"}, "of-record"),
        ([("correlation-id", b"first"), ("correlation-id", b"last")], {}, "last"),
        ([("correlation-id", b"")], {"correlation-id": "of-json"}, "of-json"),
        ([("Correlation-Id", b"of-record")], {}, "signals-2-40"),
        ([("kafka_correlationId", b"of-spring")], {"Correlation-Id": "of-json"}, "of-json"),
        ([], {"correlation-id": "", "Correlation-Id": 17}, "17"),
        ([], {"correlation-id": True}, "true"),
        ([], {"correlation-id": {"a": [1, None]}}, '{"a":[1,null]}'),
        ([], {"CORRELATION-ID": "of-json"}, "signals-2-40"),
        ([("kafka_correlationId", b"of-spring")], {}, "of-spring"),
        ([("kafka_correlationId", b"\xff\x01")], {}, "FF01"),
        ([("kafka_correlationId", None)], {}, "signals-2-40"),
        ([], {}, "signals-2-40"),
    ],
)
def test_a_correlation_id_is_taken_from_where_correlate_takes_it(
    record_headers: list[tuple[str, bytes | None]], headers: dict[str, Any], identity: str
) -> None:
    assert correlation_id(record_headers, headers, ("signals", 2, 40)) == identity


def test_an_id_that_is_free_stays_as_it_is() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue("a", 0), ids.issue("b", 0)] == ["a", "b"]


@pytest.mark.parametrize("identity", ["mine", "mine#0", "ü", "a\nb", "c#AAAAAAAAAAAAAAAA", "x" * MAX_BYTES])
def test_the_id_of_a_gateways_client_is_on_the_wire_with_what_nobody_guesses_and_is_shown_without(
    identity: str,
) -> None:
    found = {wire_id(identity) for _ in range(100)}
    assert len(found) == 100
    assert not any(map(is_too_long, found))
    assert {len(one) - len(shown_id(one)) for one in found} == {17}
    assert identity.startswith(shown_id(found.pop()))
    assert [shown_id(identity) for identity in ("mine", "mine#0", "#" + "A" * 16)] == ["mine", "mine#0", "#" + "A" * 16]


def test_a_client_receives_a_signal_without_the_random_part_and_answers_it_with() -> None:
    ids = ForwardedIds(10)
    first, second = wire_id("c"), wire_id("c")
    assert [ids.issue(first, 0), ids.issue(second, 0), ids.issue("c", 0)] == ["c", "c#0", "c#1"]
    assert [ids.original(shown, 0) for shown in ("c", "c#0", "c#1")] == [first, second, "c"]
    # knowing the id on the wire is no right to answer
    assert ids.original(first, 0) is None


def test_an_id_in_use_gets_a_suffix() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue("a", 0) for _ in range(3)] == ["a", "a#0", "a#1"]


def test_a_suffix_that_is_there_already_counts_up() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue("a#7", 0) for _ in range(3)] == ["a#7", "a#8", "a#9"]


def test_a_suffix_that_a_client_chose_itself_is_skipped() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue("a#0", 0), ids.issue("a", 0), ids.issue("a", 0)] == ["a#0", "a", "a#1"]


def test_an_id_is_free_again_after_its_time() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue("a", 0), ids.issue("a", 9.9), ids.issue("a", 10)] == ["a", "a#0", "a"]
    assert [ids.original("a#0", 19.8), ids.original("a#0", 19.9)] == ["a", None]
    assert [ids.issue("a", 20), ids.original("a#0", 20)] == ["a", None]


def test_the_time_of_an_id_can_differ_from_the_usual_one() -> None:
    ids = ForwardedIds(65)
    ids.issue("c", 0, 5)
    assert [ids.issue("c", 4.9, 5.1), ids.issue("c", 5, 15)] == ["c#0", "c"]


@each("aggregation", "forwarder-conflict-free")
def test_signals_that_are_open_at_once_have_different_correlation_ids(given_: dict[str, Any], expect: dict[str, Any]):
    ids = ForwardedIds(65)
    identity = given_["correlation-id"]
    published = [ids.issue(identity, 0) for _ in range(given_["signals with that id"])]
    assert published == expect["published correlation-ids"]
    assert [ids.original(each_, 0) for each_ in published] == [identity] * len(published)


@each("aggregation", "forwarder-through")
def test_an_acknowledgement_finds_the_signal_it_is_for(given_: dict[str, Any], expect: dict[str, Any]):
    assert given_["requested"] == [given_["ack"]["label"]]
    ids = ForwardedIds(65)
    assert (ids.original(ids.issue("c", 0), 0) == "c") is expect["delivered to requester"]
    assert ids.original("someone else's", 0) is None


def test_ids_are_recent_for_a_while() -> None:
    recent = RecentIds(10)
    recent.add("a", 0)
    recent.add("b", 5)
    assert recent.known("a", 9)
    # whether or not another one has been added since
    assert not recent.known("a", 10)
    recent.add("c", 10)
    assert [recent.known(identity, 10) for identity in "abc"] == [False, True, True]
    recent.add("b", 12)
    assert recent.known("b", 21)


def test_one_id_that_lasts_long_keeps_no_others_in_memory() -> None:
    ids = ForwardedIds(65)
    ids.issue("long", 0, 86_400)
    for number in range(1_000):
        ids.issue(str(number), number)
        ids.add("again", number)
    assert ids.known("long", 1_000)
    assert len(ids._originals) < 200
    for _ in range(5_000):
        ids.add("again", 1_000, 86_400)
    assert len(ids._until) < 200


def test_a_suffix_whose_time_is_over_begins_anew() -> None:
    ids = ForwardedIds(10)
    assert [ids.issue(identity, 0) for identity in ("c", "c", "c#0", "c#0")] == ["c", "c#0", "c#1", "c#2"]
    ids.issue("c", 5)
    assert [ids.issue(identity, 11) for identity in ("c#0", "c#0")] == ["c#0", "c#1"]


def test_an_id_that_has_expired_is_issued_as_it_is_behind_one_that_lasts_longer() -> None:
    ids = ForwardedIds(10)
    ids.issue("long", 0, 1_000)
    assert [ids.issue("c", 1), ids.issue("c", 1)] == ["c", "c#0"]
    assert [ids.issue("c#0", 20), ids.original("c#0", 20)] == ["c#0", "c#0"]


@pytest.mark.parametrize("character", ["x", "\x01", "ü", "😀", '"'])
def test_the_length_of_an_id_is_that_of_its_json(character: str) -> None:
    fits = MAX_BYTES // (len(msgspec.json.encode(character)) - 2)
    assert not is_too_long(character * fits)
    assert is_too_long(character * (fits + 1))


@pytest.mark.parametrize("identity", ["x" * MAX_BYTES, "\x01" * 170, "ü" * 512, "x" * (MAX_BYTES - 2) + "#9"])
def test_a_suffix_makes_no_id_too_long(identity: str) -> None:
    ids = ForwardedIds(65)
    issued = [ids.issue(identity, 0) for _ in range(12)]
    assert len(set(issued)) == len(issued)
    assert not any(map(is_too_long, issued))
    assert {ids.original(one, 0) for one in issued} == {identity}


def test_the_entry_that_was_not_set_for_longest_is_forgotten() -> None:
    latest: Latest[str, list[str]] = Latest(2)
    latest.touch("a", list).append("more")
    latest["b"] = []
    latest.touch("a", list)
    latest["c"] = []
    assert list(latest.items()) == [("a", ["more"]), ("c", [])]
    latest["a"] = latest["a"]
    latest.touch("d", list)
    assert list(latest) == ["a", "d"]


def test_no_two_ids_of_a_process_are_alike_and_none_follows_from_another() -> None:
    found = [unguessable(12) for _ in range(10_000)]
    assert len(set(found)) == len(found)
    code = "from ackstream.protocol.ditto.correlation_ids import unguessable; print(unguessable(12).hex())"
    others = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(others) == 2
