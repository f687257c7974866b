from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ackstream.client.enrichment import fields_in, fields_of, retrieval
from ackstream.client.reply import Reply
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from ackstream.protocol.envelopes import Envelope

THING = "org.acme:lamp"
TOPIC = "org.acme/lamp/things/twin/commands/retrieve"


def reply(status: int, value: Any = None) -> Reply:
    data = msgspec.json.encode({"topic": TOPIC, "headers": {}, "path": "/", "value": value, "status": status})
    return Reply("c", "r", status, "response", data)


class Requester:
    def __init__(self) -> None:
        self.asked: list[tuple[Envelope, Any]] = []

    def request(self, command: Envelope, *, timeout: Any) -> Reply:
        self.asked.append((command, timeout))
        return reply(200, {"attributes": {"x": 1}})


def test_the_twin_is_asked_for_the_fields():
    requester = Requester()
    assert fields_of(requester, 5)(THING, "attributes/x") == {"attributes": {"x": 1}}  # type: ignore[arg-type]
    assert requester.asked == [(retrieval(THING, "attributes/x"), 5)]
    assert (str(retrieval(THING, "attributes/x").topic), retrieval(THING, "attributes/x").fields) == (
        TOPIC, "attributes/x",
    )  # fmt: skip


def test_a_thing_that_is_not_there_has_no_fields():
    assert fields_in(reply(404), THING) == {}


@pytest.mark.parametrize("failed", [reply(503), reply(408), reply(200, 5)])
def test_a_twin_that_cannot_be_asked_is_an_error(failed: Reply):
    with pytest.raises(DittoError, match="enrichment failed") as caught:
        fields_in(failed, THING)
    assert caught.value.status == failed.status
