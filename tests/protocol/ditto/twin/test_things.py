""""""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin import things
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import select


@pytest.mark.parametrize(
    ("path", "kind", "pointer"),
    [
        ("/", "thing", None),
        ("/policyId", "policyId", None),
        ("/definition", "definition", None),
        ("/attributes", "attributes", None),
        ("/attributes/a/b~1c", "attribute", "/a/b~1c"),
        ("/features", "features", None),
        ("/features/f", "feature", None),
        ("/features/f/definition", "featureDefinition", None),
        ("/features/f/properties", "featureProperties", None),
        ("/features/f/properties/p/q", "featureProperty", "/p/q"),
        ("/features/f/desiredProperties", "featureDesiredProperties", None),
        ("/features/f/desiredProperties/p", "featureDesiredProperty", "/p"),
    ],
)
def test_a_path_names_a_resource(path: str, kind: str, pointer: str | None) -> None:
    found = things.resource(path)
    assert (found.kind, found.path, found.pointer) == (kind, path, pointer)


@pytest.mark.parametrize("path", ["/thingId", "/policyId/x", "/features/f/x", "/inbox/messages/x", "/definition/x"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(DittoError) as found:
        things.resource(path)
    assert (found.value.status, found.value.error) == (400, "protocoladapter:unknown.path")


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("/attributes", 1, "json.invalid"),
        ("/features", [], "json.invalid"),
        ("/features", {"f": "x"}, "json.invalid"),
        ("/features/f", {"properties": 1}, "json.invalid"),
        ("/features/f", {"definition": ["nonsense"]}, "things:definition.identifier.invalid"),
        ("/features/f/definition", [], "json.invalid"),
        ("/features/f/properties", "x", "json.invalid"),
        ("/definition", "a:b", "things:definition.identifier.invalid"),
        ("/definition", 1, "json.invalid"),
        ("/policyId", None, "json.invalid"),
        ("/policyId", "no namespace", "things:id.invalid"),
    ],
)
def test_a_value_that_does_not_belong_there_is_refused(path: str, value: Any, error: str) -> None:
    with pytest.raises(DittoError) as found:
        things.check(things.resource(path), value)
    assert (found.value.status, found.value.error) == (400, error)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/attributes", None), ("/attributes/x", [1, {}]), ("/features/f", None), ("/features/f", {"properties": {}}),
        ("/features/f/definition", ["a:b:1.0", "https://example.com/model.tm.jsonld"]), ("/definition", "a:b:1"),
        ("/policyId", "org.acme:policy"), ("/features", {"f": {}}), ("/features/f/properties/p", None),
    ],
)  # fmt: skip
def test_other_values_may_stand_there(path: str, value: Any) -> None:
    things.check(things.resource(path), value)


def test_a_thing_is_kept_with_its_id_and_known_members_in_their_order() -> None:
    given = {"features": {}, "unknown": 1, "_revision": 7, "attributes": {"a": 1}}
    assert list(things.thing_content(given, "a:b")) == ["thingId", "attributes", "features"]
    assert things.thing_content(given, "a:b")["thingId"] == "a:b"


def test_the_id_of_another_thing_is_refused() -> None:
    with pytest.raises(DittoError) as found:
        things.thing_content({"thingId": "a:c"}, "a:b")
    assert found.value.error == "things:id.notsettable"


@pytest.mark.parametrize("thing_id", ["a:b", ":b", "org.acme-x.y:b c", "a:b:c"])
def test_ids_have_a_namespace_and_a_name(thing_id: str) -> None:
    things.check_id(thing_id)


@pytest.mark.parametrize("thing_id", ["", "a", "a:", "1a:b", "a..b:c", "a:b/c", "a:\x00", "a:" + "b" * 300])
def test_other_ids_are_refused(thing_id: str) -> None:
    with pytest.raises(DittoError) as found:
        things.check_id(thing_id)
    assert found.value.error == "things:id.invalid"


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
    assert things.partial_thing(given) == FACTS | told


def test_what_is_no_event_tells_nothing_of_the_thing():
    topic = TopicPath.parse("org.acme/lamp/things/live/messages/ask")
    assert things.partial_thing(Envelope(topic, {}, "/inbox/messages/ask", raw({"attributes": 1}))) == {}


def test_two_things_are_merged_object_by_object_and_the_second_wins():
    base = {"attributes": {"a": 1, "b": 2}, "policyId": "p:q"}
    assert things.merged(base, {"attributes": {"b": 3}}) == {"attributes": {"a": 1, "b": 3}, "policyId": "p:q"}
    assert things.merged(base, {"attributes": 5})["attributes"] == 5
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
    assert things.placeholders(Envelope(TopicPath.parse(topic), {}, path), thing)[prefix] == expected


@pytest.mark.parametrize("selector", ["_policy", "thingId,_metadata/attributes", "_policy(policyId)"])
def test_fields_that_things_do_not_have_here_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        things.select_of_thing({"thingId": "a:b"}, selector)
    assert found.value.status == 501
    # an attribute may have any name
    assert select({"_policy": 1}, "_policy") == {"_policy": 1}
