from __future__ import annotations

import pytest

from ackstream.publishing.acks import ACK_TYPES, SUPPORTED, Ack, decode_ack, encode_ack, unsupported
from ackstream.publishing.commands import Command, completed, opening, read_range, refusal, statistics
from ackstream.publishing.reasons import BadFilterError, NoSubscriptionMatchError, RefusedError, error_name, refused


def _command(name: str = "sow", asked: str = " ".join(ACK_TYPES), **fields: object) -> Command:
    return Command(name, "c", frozenset(asked.split()), **fields)  # type: ignore[arg-type]


# brokers.md 1.2, column by column: received, processed, persisted, completed, stats
MATRIX = {
    "logon": "yy---",
    "publish": "yyyy-",
    "delta_publish": "yyyy-",
    "subscribe": "yyyy-",
    "delta_subscribe": "yyyyy",
    "sow": "yy-yy",
    "sow_and_subscribe": "yy-yy",
    "sow_and_delta_subscribe": "yy-yy",
    "sow_delete": "yyyyy",
    "unsubscribe": "yy---",
    "flush": "yyyy-",
    "heartbeat": "yy---",
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_matrix_is_that_of_the_command_reference(name: str) -> None:
    found = "".join("-" if unsupported(name, [ack_type]) else "y" for ack_type in ACK_TYPES)
    assert found == MATRIX[name]


def test_a_type_that_a_command_cannot_answer_fails_processed_whether_or_not_that_was_asked_for() -> None:
    command = _command(asked="persisted")
    reason = refusal(command)
    assert opening(command, reason) == [Ack(ack_type="processed", status="failure", cid="c", reason="not supported")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"filter": "/x =="}, "bad filter"),
        ({"filter": "/x == 1"}, None),
        ({"bookmark": "EPOCH"}, None),
        ({"bookmark": 17}, None),
        ({"bookmark": "17"}, None),
        ({"bookmark": "yesterday"}, "invalid bookmark"),
    ],
)
def test_a_command_that_cannot_be_understood_is_refused(fields: dict[str, object], reason: str | None) -> None:
    assert refusal(_command("subscribe", "processed", **fields)) == reason


def test_what_fails_at_storing_was_processed_all_right() -> None:
    processed = opening(_command("publish", "received processed"), "duplicate")
    assert [(ack.ack_type, ack.status) for ack in processed] == [("received", "success"), ("processed", "success")]


def test_deleting_is_completed_with_a_filter_only() -> None:
    assert completed(_command("sow_delete")) == []
    assert completed(_command("sow_delete", filter="/x"))[0].ack_type == "completed"


@pytest.mark.parametrize(("top_n", "returned"), [(None, 120), (50, 50), (0, 0), (500, 120)])
def test_a_query_counts_what_it_returns(top_n: int | None, returned: int) -> None:
    (ack,) = statistics(_command(top_n=top_n), 1000, 120)
    assert (ack.topic_matches, ack.matches, ack.records_returned, ack.records_deleted) == (1000, 120, returned, None)


def test_a_delete_counts_what_it_deletes() -> None:
    (ack,) = statistics(_command("sow_delete"), 1000, 30)
    assert (ack.topic_matches, ack.matches, ack.records_returned, ack.records_deleted) == (1000, 30, None, 30)


@pytest.mark.parametrize(
    ("text", "read"), [("[10:20]", (9, 20)), ("(10:20)", (10, 19)), ("[10:]", (9, None)), ("(0:5]", (0, 5))]
)
def test_ranges(text: str, read: tuple[int, int | None]) -> None:
    assert read_range(text) == read


@pytest.mark.parametrize("text", ["10:20", "[20:10]", "[a:b]", ""])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        read_range(text)


@pytest.mark.parametrize(
    ("reason", "name", "kind"),
    [
        ("bad filter", "BadFilter", BadFilterError),
        ("NO_SUBSCRIPTION_MATCH", "NoSubscriptionMatch", NoSubscriptionMatchError),
        ("sow store failed", "SowStoreFailed", RefusedError),
    ],
)
def test_reasons_are_typed_errors(reason: str, name: str, kind: type[RefusedError]) -> None:
    assert error_name(reason) == name
    error = refused(reason)
    assert type(error) is kind
    assert error.reason == reason


def test_an_ack_on_the_wire() -> None:
    ack = Ack(ack_type="persisted", client="p1", first=1, seq=5, effective_conflation_ms=1000)
    text = b'{"c":"ack","a":"persisted","client":"p1","first":1,"s":5,"effective_conflation_ms":1000}'
    assert encode_ack(ack) == text
    assert decode_ack(text) == ack


def test_the_id_of_an_ack_follows_from_what_it_says() -> None:
    ack = Ack(ack_type="persisted", client="p1", first=1, seq=5)
    assert ack.identified() == ack.identified()
    assert ack.identified().ack_id != Ack(ack_type="persisted", client="p2", first=1, seq=5).identified().ack_id
