from __future__ import annotations

from typing import Any

import pytest

from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.things import merged, partial_thing, placeholders
from ackstream.protocol.ditto.topics import TopicPath

FACTS = {"thingId": "org.acme:lamp", "_revision": 7, "_modified": "2026-01-01T00:00:00Z"}


def event(action: str, path: str, value: Any = ..., channel: str = "twin") -> Envelope:
    topic = TopicPath.parse(f"org.acme/lamp/things/{channel}/events/{action}")
    given = {} if value is ... else {"value": raw(value)}
    return Envelope(topic, {}, path, revision=7, timestamp="2026-01-01T00:00:00Z", **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (event("created", "/", {"thingId": "x:y", "attributes": {"a": 1}}), {"attributes": {"a": 1}}),
        (event("modified", "/attributes/a/b", 1), {"attributes": {"a": {"b": 1}}}),
        (event("modified", "/attributes/a~1b", 1), {"attributes": {"a/b": 1}}),
        (event("modified", "/attributes/a", None), {"attributes": {"a": None}}),
        (event("modified", "/features/f/properties/p", [1]), {"features": {"f": {"properties": {"p": [1]}}}}),
        (event("modified", "/policyId", "p:q"), {"policyId": "p:q"}),
        (event("merged", "/attributes", {"a": 1, "b": None, "c": {"d": None}}), {"attributes": {"a": 1, "c": {}}}),
        (event("merged", "/", {"attributes": None}), {}),
        (event("deleted", "/"), {}),
        (event("deleted", "/attributes/a"), {}),
        (event("modified", "/attributes/a", 1, "live"), {"attributes": {"a": 1}}),
    ],
)
def test_an_event_tells_id_revision_timestamp_and_only_what_changed(given: Envelope, told: dict[str, Any]):
    assert partial_thing(given) == FACTS | told


def test_what_is_no_event_tells_nothing_of_the_thing():
    topic = TopicPath.parse("org.acme/lamp/things/live/messages/ask")
    assert partial_thing(Envelope(topic, {}, "/inbox/messages/ask", raw({"attributes": 1}))) == {}


def test_two_things_are_merged_object_by_object_and_the_second_wins():
    base = {"attributes": {"a": 1, "b": 2}, "policyId": "p:q"}
    assert merged(base, {"attributes": {"b": 3}}) == {"attributes": {"a": 1, "b": 3}, "policyId": "p:q"}
    assert merged(base, {"attributes": 5})["attributes"] == 5
    assert base["attributes"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("topic", "path", "thing", "prefix", "expected"),
    [
        (
            "org.acme/lamp/things/twin/events/modified",
            "/attributes/a",
            {},
            "topic",
            {
                "full": "org.acme/lamp/things/twin/events/modified",
                "namespace": "org.acme",
                "entityName": "lamp",
                "group": "things",
                "channel": "twin",
                "criterion": "events",
                "action": "modified",
                "action-subject": "modified",
            },
        ),
        (
            "a/b/things/live/messages/x/y", "/inbox/messages/x/y", {}, "resource",
            {"type": "message", "path": "/inbox/messages/x/y"},
        ),
        ("a/b/things/twin/events/deleted", "/", {}, "resource", {"type": "thing", "path": "/"}),
        ("a/b/things/twin/events/deleted", "/", {}, "entity", {"id": "a:b", "namespace": "a", "name": "b"}),
        ("a/b/things/twin/events/deleted", "/features/f", {}, "feature", {"id": ["f"]}),
        ("a/b/things/live/messages/x", "/features/f/inbox/messages/x", {}, "feature", {"id": ["f"]}),
        ("a/b/things/twin/events/merged", "/features", {"features": {"f": {}, "g": {}}}, "feature", {"id": ["f", "g"]}),
        ("a/b/things/twin/events/modified", "/attributes/a", {}, "feature", {"id": []}),
    ],
)  # fmt: skip
def test_filters_may_ask_about_the_signal_itself(
    topic: str, path: str, thing: dict[str, Any], prefix: str, expected: dict[str, Any]
):
    assert placeholders(Envelope(TopicPath.parse(topic), {}, path), thing)[prefix] == expected
