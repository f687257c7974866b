from __future__ import annotations

from typing import Any

import pytest

from ackstream.client.command_session import MAX_RETRIES, CommandOutcome, CommandSession, Send
from ackstream.protocol.messages import CommandAck


def _ack(cid: str, **fields: Any) -> CommandAck:
    return CommandAck(ack_type="processed", cid=cid, **fields)


def test_a_retry_is_tried_with_the_new_credentials_and_the_second_answer_decides() -> None:
    session = CommandSession()
    session.sent("logon", "l1", 0)
    outcome, sends = session.answered(_ack("l1", status="retry", user_id="u2", password="x"))
    assert outcome is None
    assert sends == [Send("logon", "l1", "u2", "x")]
    assert str(sends[0]) == "logon with u2"
    assert not session.connected
    assert session.answered(_ack("l1"))[0] == CommandOutcome("l1", "logon")
    assert session.connected
    session.lost()
    assert not session.connected


def test_a_server_that_never_stops_asking_for_another_logon_is_given_up() -> None:
    session = CommandSession()
    session.sent("logon", "l1", 0)
    for _ in range(MAX_RETRIES):
        assert session.answered(_ack("l1", status="retry"))[0] is None
    outcome, sends = session.answered(_ack("l1", status="retry"))
    assert (outcome and outcome.reason, sends) == ("logon refused again and again", [])


@pytest.mark.parametrize(
    ("command", "sends"),
    [("subscribe", ["unsubscribe c"]), ("sow", ["unsubscribe c"]), ("sow_delete", []), ("flush", [])],
)
def test_a_command_that_takes_too_long_leaves_nothing_behind(command: str, sends: list[str]) -> None:
    session = CommandSession()
    session.sent(command, "c", 100, 5000)
    assert session.deadline == 5100
    assert session.expire(5099) == ([], [])
    outcomes, sent = session.expire(5100)
    assert outcomes == [CommandOutcome("c", command, timed_out=True)]
    assert [str(send) for send in sent] == sends
    assert session.answered(_ack("c")) == (None, [])


def test_without_a_timeout_an_answer_is_waited_for_for_ever() -> None:
    session = CommandSession()
    session.sent("sow", "c", 0)
    assert session.deadline is None
    assert session.answered(_ack("c", status="failure", reason="bad filter"))[0] == CommandOutcome(
        "c", "sow", "bad filter"
    )
