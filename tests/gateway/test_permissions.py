from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackstream.gateway.permissions import seen_by
from ackstream.protocol.ditto.access import OPEN, Access, Rule
from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.subscriptions import Publication, publication
from ackstream.protocol.ditto.topics import TopicPath

SOME = Access([Rule(("user:a",), ("org.acme:*",), "/attributes/x"), Rule(("user:b",), ("org.acme:*",), "/inbox")])


def signal(topic: str, path: str, value: Any) -> Publication:
    found = publication(Envelope(TopicPath.parse(topic), {}, path, raw(value)), "c")
    assert found is not None
    return found


EVENT = signal("org.acme/lamp/things/twin/events/modified", "/attributes", {"x": 1, "y": 2})
MESSAGE = signal("org.acme/lamp/things/live/messages/ask", "/inbox/messages/ask", {"x": 1})


def test_without_rules_everybody_sees_everything():
    assert seen_by(OPEN, ("anonymous",), EVENT) is EVENT


def test_of_an_event_one_sees_what_one_may_read_and_filters_see_no_more():
    seen = seen_by(SOME, ("user:a",), EVENT)
    assert seen is not None
    assert msgspec.json.decode(seen.envelope.value) == {"x": 1}
    assert seen.thing["attributes"] == {"x": 1}


@pytest.mark.parametrize(
    ("subject", "given", "seen"),
    [("user:b", EVENT, False), ("user:c", EVENT, False), ("user:b", MESSAGE, True), ("user:a", MESSAGE, False)],
)
def test_what_one_may_not_read_is_hidden(subject: str, given: Publication, seen: bool):  # noqa: FBT001 - a column
    assert (seen_by(SOME, (subject,), given) is not None) is seen
