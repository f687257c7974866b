from __future__ import annotations

from typing import Any

import pytest

from ackstream.protocol.ditto.things import check, check_id, resource, thing_content
from ackstream.protocol.errors import DittoError


@pytest.mark.parametrize(
    ("path", "kind", "pointer"),
    [
        ("/", "thing", "/"),
        ("/policyId", "policyId", "/"),
        ("/definition", "definition", "/"),
        ("/attributes", "attributes", "/"),
        ("/attributes/a/b~1c", "attribute", "/a/b~1c"),
        ("/features", "features", "/"),
        ("/features/f", "feature", "/"),
        ("/features/f/definition", "featureDefinition", "/"),
        ("/features/f/properties", "featureProperties", "/"),
        ("/features/f/properties/p/q", "featureProperty", "/p/q"),
        ("/features/f/desiredProperties", "featureDesiredProperties", "/"),
        ("/features/f/desiredProperties/p", "featureDesiredProperty", "/p"),
    ],
)
def test_a_path_names_a_resource(path: str, kind: str, pointer: str) -> None:
    found = resource(path)
    assert (found.kind, found.path, found.pointer) == (kind, path, pointer)


@pytest.mark.parametrize("path", ["/thingId", "/policyId/x", "/features/f/x", "/inbox/messages/x", "/definition/x"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(DittoError) as found:
        resource(path)
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
        check(resource(path), value)
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
    check(resource(path), value)


def test_a_thing_is_kept_with_its_id_and_known_members_in_their_order() -> None:
    given = {"features": {}, "unknown": 1, "_revision": 7, "attributes": {"a": 1}}
    assert list(thing_content(given, "a:b")) == ["thingId", "attributes", "features"]
    assert thing_content(given, "a:b")["thingId"] == "a:b"


def test_the_id_of_another_thing_is_refused() -> None:
    with pytest.raises(DittoError) as found:
        thing_content({"thingId": "a:c"}, "a:b")
    assert found.value.error == "things:id.notsettable"


@pytest.mark.parametrize("thing_id", ["a:b", ":b", "org.acme-x.y:b c", "a:b:c"])
def test_ids_have_a_namespace_and_a_name(thing_id: str) -> None:
    check_id(thing_id)


@pytest.mark.parametrize("thing_id", ["", "a", "a:", "1a:b", "a..b:c", "a:b/c", "a:\x00", "a:" + "b" * 300])
def test_other_ids_are_refused(thing_id: str) -> None:
    with pytest.raises(DittoError) as found:
        check_id(thing_id)
    assert found.value.error == "things:id.invalid"
