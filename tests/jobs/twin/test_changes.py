"""What each command does, told by its answer, its event and the thing afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.twin.changes import merge_patch, minimized, without_nulls
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings, Twin
from tests.jobs.twin.commands import THING_ID, answer, answers, body, run, sent_to, thing_after

CREATE = body("create", value={"attributes": {"a": 1}, "features": {"f": {"properties": {"p": 1}}}})
BARE = body("create", value={})
WHOLE = {
    "thingId": THING_ID,
    "policyId": THING_ID,
    "attributes": {"a": 1},
    "features": {"f": {"properties": {"p": 1}}},
}


# after CREATE: the command, the status of its answer, the value of that, the event's action
@pytest.mark.parametrize(
    ("command", "status", "value", "event"),
    [
        (body("modify", value={"attributes": {}}), 204, None, "modified"),
        (body("modify", "/policyId", THING_ID), 204, None, "modified"),
        (body("modify", "/definition", "a:b:1"), 201, "a:b:1", "created"),
        (body("modify", "/attributes", {}), 204, None, "modified"),
        (body("modify", "/attributes/a", 1), 204, None, "modified"),
        (body("modify", "/attributes/b/c", [1]), 201, [1], "created"),
        (body("modify", "/features", {}), 204, None, "modified"),
        (body("modify", "/features/f", {}), 204, None, "modified"),
        (body("modify", "/features/g", {}), 201, {}, "created"),
        (body("modify", "/features/f/definition", ["a:b:1"]), 201, ["a:b:1"], "created"),
        (body("modify", "/features/f/properties", {}), 204, None, "modified"),
        (body("modify", "/features/f/properties/p", None), 204, None, "modified"),
        (body("modify", "/features/f/properties/q/r", 2), 201, 2, "created"),
        (body("modify", "/features/f/desiredProperties", {}), 201, {}, "created"),
        (body("modify", "/features/f/desiredProperties/p", 3), 201, 3, "created"),
        (body("merge", value={"attributes": {"a": None}}), 204, None, "merged"),
        (body("merge", "/attributes/a", None), 204, None, "merged"),
        (body("merge", "/features/g/properties/x", 1), 204, None, "merged"),
        (body("delete"), 204, None, "deleted"),
        (body("delete", "/attributes"), 204, None, "deleted"),
        (body("delete", "/attributes/a"), 204, None, "deleted"),
        (body("delete", "/features"), 204, None, "deleted"),
        (body("delete", "/features/f"), 204, None, "deleted"),
        (body("delete", "/features/f/properties"), 204, None, "deleted"),
        (body("delete", "/features/f/properties/p"), 204, None, "deleted"),
    ],
)
def test_a_change_has_a_response_an_event_and_a_revision(command: Any, status: int, value: Any, event: str) -> None:
    result = run(CREATE, command)
    response, told = sent_to(result.messages, "twin-acks")[1], sent_to(result.messages, "events")[1]
    assert (response["status"], response.get("value")) == (status, value)
    assert (response["topic"], response["path"]) == (command["topic"], command["path"])
    assert told["topic"] == f"org.acme/lamp/things/twin/events/{event}"
    assert (told["path"], told["revision"], told["timestamp"]) == (command["path"], 2, "2023-11-14T22:13:20.001Z")
    assert response["headers"]["entity-revision"] == 2
    assert result.changed[THING_ID].revision == 2


@pytest.mark.parametrize(
    ("command", "thing"),
    [
        (body("modify", value={"attributes": {"n": 1}}),
         {"thingId": THING_ID, "policyId": THING_ID, "attributes": {"n": 1}}),
        (body("modify", "/attributes/x~1y/z", 2), WHOLE | {"attributes": {"a": 1, "x/y": {"z": 2}}}),
        (body("merge", "/features", {"f": {"properties": {"p": None, "q": 1}}, "g": {}}),
         WHOLE | {"features": {"f": {"properties": {"q": 1}}, "g": {}}}),
        (body("merge", "/features/f", None), WHOLE | {"features": {}}),
        (body("delete", "/attributes/a"), WHOLE | {"attributes": {}}),
        (body("delete", "/features"), {name: part for name, part in WHOLE.items() if name != "features"}),
        (body("delete"), None),
    ],
)  # fmt: skip
def test_the_thing_is_as_the_command_says(command: Any, thing: Any) -> None:
    assert thing_after(CREATE, command) == thing


def test_a_created_thing_has_its_own_id_as_policy_id_unless_it_names_one() -> None:
    assert thing_after(BARE) == {"thingId": THING_ID, "policyId": THING_ID}
    assert thing_after(body("create", value={"policyId": THING_ID}))["policyId"] == THING_ID


@pytest.mark.parametrize("action", ["create", "modify", "merge"])
def test_modify_and_merge_create_a_missing_thing(action: str) -> None:
    response = answer(body(action, value={"attributes": {"a": 1, "b": None}}))
    assert response["status"] == 201
    assert response["headers"]["etag"] == '"rev:1"'
    assert response["value"]["attributes"] == ({"a": 1} if action == "merge" else {"a": 1, "b": None})


def test_a_thing_that_is_created_again_goes_on_with_the_next_revision() -> None:
    result = run(BARE, body("delete"), body("modify", "/attributes/x", 1), body("merge", value={"attributes": {}}))
    assert [answer["status"] for answer in sent_to(result.messages, "twin-acks")] == [201, 204, 404, 201]
    assert [event["revision"] for event in sent_to(result.messages, "events")] == [1, 2, 3]


# after BARE: the command, status and code of the error
@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        (BARE, 409, "things:thing.conflict"),
        (body("create", "/attributes", {}), 400, "protocoladapter:unknown.path"),
        (body("delete", "/policyId"), 400, "protocoladapter:unknown.path"),
        (body("migrate", "/definition", {}), 400, "protocoladapter:unknown.topicpath"),
        (body("modify"), 400, "json.field.missing"),
        (body("modify", value={"thingId": "a:b"}), 400, "things:id.notsettable"),
        (body("modify", "/features/f", 1), 400, "json.invalid"),
        (body("modify", "/attributes//x", 1), 400, "json.pointer.invalid"),
        (body("modify", "/attributes/x", 2**70), 400, "json.invalid"),
        (body("merge", value={"policyId": None}), 400, "things:policyId.notdeletable"),
        (body("merge", "/policyId", None), 400, "things:policyId.notdeletable"),
        (body("merge", value={"thingId": None}), 400, "things:id.notdeletable"),
        (body("merge", value={"thingId": "a:b"}), 400, "things:id.notsettable"),
        (body("merge", value={}), 400, "things:merge.invalid"),
        (body("merge", value=[1]), 400, "things:merge.invalid"),
        (body("merge", "/attributes", 1), 400, "things:merge.invalid"),
        (body("merge", "/features/f", "x"), 400, "things:merge.invalid"),
        (body("delete", "/definition"), 404, "things:definition.notfound"),
        (body("delete", "/attributes"), 404, "things:attributes.notfound"),
        (body("retrieve", "/attributes/x"), 404, "things:attribute.notfound"),
        (body("delete", "/features"), 404, "things:features.notfound"),
        (body("delete", "/features/f"), 404, "things:feature.notfound"),
        (body("modify", "/features/f/definition", ["a:b:1"]), 404, "things:feature.notfound"),
        (body("modify", "/features/f/properties/p", 1), 404, "things:feature.notfound"),
        (body("retrieve", "/features/f/desiredProperties/p"), 404, "things:feature.notfound"),
        (body("modify", "/attributes/x", 1, if_match='"rev:1"'), 412, "things:precondition.failed"),
        (body("modify", "/attributes/x", 1, if_match="rev:1"), 400, "header.invalid"),
        (body("modify", value={}, if_none_match="*"), 412, "things:precondition.failed"),
        (body("create", value={}, if_none_match="*"), 412, "things:precondition.failed"),
        (body("modify", "/attributes/x", 1, condition="exists(attributes/x)"), 412, "things:condition.failed"),
        (body("modify", "/attributes/x", 1, condition="nonsense"), 400, "rql.expression.invalid"),
        (body("retrieve", if_none_match='"rev:1"'), 304, "things:precondition.notmodified"),
        (body("retrieve", fields="a("), 400, "json.fieldselector.invalid"),
        (body("retrieve", fields="thingId,_policy"), 501, "command.notavailable"),
        (body("modify", value={"_policy": {}}), 501, "command.notavailable"),
        (body("create", value={"_copyPolicyFrom": "a:b"}), 501, "command.notavailable"),
        (body("merge", value={"_policy": {}}), 501, "command.notavailable"),
        (body("create", value={"policyId": "a:p"}), 501, "command.notavailable"),
        (body("modify", value={"policyId": "a:p"}), 501, "command.notavailable"),
        (body("merge", value={"policyId": "a:p"}), 501, "command.notavailable"),
        (body("modify", "/policyId", "a:p"), 501, "command.notavailable"),
        (body("merge", "/policyId", "a:p"), 501, "command.notavailable"),
        (body("delete", dry_run=True), 501, "command.notavailable"),
        (body("retrieve", at_historical_revision="1"), 501, "command.notavailable"),
        (body("modify", "/attributes", {}, put_metadata=[]), 501, "command.notavailable"),
        (body("delete", live_channel_condition="exists(attributes/a)"), 405, "things:live.channelcondition.notallowed"),
        (body("modify", value={}, if_equal="skip"), 412, "things:precondition.failed"),
        (body("merge", "/policyId", THING_ID, if_equal="skip-minimizing-merge"), 412, "things:precondition.failed"),
    ],
)  # fmt: skip
def test_a_failed_command_gets_its_error_and_changes_nothing(command: Any, status: int, error: str) -> None:
    result = run(BARE, command)
    told = sent_to(result.messages, "twin-acks")[1]
    assert (told["topic"], told["status"]) == ("org.acme/lamp/things/twin/errors", status)
    assert (told["value"]["status"], told["value"]["error"]) == (status, error)
    assert [row.revision for row in result.rows] == [1]
    assert result.changed[THING_ID].revision == 1


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/features/f/definition", "things:feature.definition.notfound"),
        ("/features/f/properties/q", "things:feature.property.notfound"),
        ("/features/f/desiredProperties", "things:feature.desiredProperties.notfound"),
        ("/features/f/desiredProperties/q", "things:feature.desiredProperty.notfound"),
    ],
)
def test_a_missing_part_of_a_feature_is_named(path: str, error: str) -> None:
    assert answer(CREATE, body("delete", path))["value"]["error"] == error


def test_a_missing_thing_is_not_found_by_any_command() -> None:
    asked = [body("retrieve"), body("delete"), body("delete", "/attributes"), body("merge", "/attributes", {})]
    assert {entry["value"]["error"] for entry in answers(*asked)} == {"things:thing.notfound"}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (body("modify", "/attributes/a", 1, if_equal="skip"), 412),
        (body("modify", "/attributes/a", 1, if_equal="skip-minimizing-merge"), 412),
        (body("modify", "/attributes/a", 1, if_equal="update"), 204),
        (body("modify", "/attributes/a", value=True, if_equal="skip"), 204),
        (body("modify", "/attributes/a", 2, if_equal="skip"), 204),
        (body("modify", "/attributes/b", 1, if_equal="skip"), 201),
        (body("merge", value={"attributes": {"a": 1, "none": None}}, if_equal="skip"), 412),
        (body("merge", "/attributes", {"a": 1, "b": 2}, if_equal="skip"), 204),
        (body("create", value={}, thing="org.acme:door", if_equal="skip"), 201),
    ],
)
def test_a_change_that_would_change_nothing_is_skipped_if_its_sender_says_so(command: Any, status: int) -> None:
    told = answer(CREATE, command)
    assert told["status"] == status
    if status == 412:
        expected = "The previous value was equal to the new value and the 'if-equal' header was set to '{}'."
        assert told["value"]["message"] == expected.format(command["headers"]["if-equal"])


def test_a_merge_is_reduced_to_what_it_changes_if_its_sender_says_so() -> None:
    patch = {"attributes": {"a": 1, "b": 2, "c": None}, "features": {"f": {"properties": {"p": 1, "q": {}}}}}
    whole, reduced = (
        sent_to(run(CREATE, body("merge", value=patch, **headers)).messages, "events")[1]["value"]
        for headers in ({}, {"if_equal": "skip-minimizing-merge"})
    )
    assert whole == patch
    assert reduced == {"attributes": {"b": 2}, "features": {"f": {"properties": {"q": {}}}}}


def test_a_failed_precondition_reports_the_current_entity_tag() -> None:
    assert answer(BARE, body("delete", if_match='"rev:7"'))["headers"]["etag"] == '"rev:1"'
    assert "etag" not in answer(BARE, BARE)["headers"]


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("and(eq(attributes/a,1),le(_modified,time:now))", 204),
        ("eq(attributes/a,2)", 412),
        ("gt(_modified,time:now)", 412),
        ("eq(nonsense,2)", 400),
        ("eq(", 400),
    ],
)
def test_a_condition_is_rql_on_the_thing_with_the_time_of_the_command(condition: str, status: int) -> None:
    assert answer(CREATE, body("modify", "/attributes/a", 2, condition=condition))["status"] == status


def test_entity_tags_of_parts_follow_their_content() -> None:
    first = answer(CREATE, body("modify", "/attributes/a", {"x": 1, "y": 2}))["headers"]["etag"]
    again = answer(CREATE, body("modify", "/attributes/a", {"y": 2, "x": 1}))["headers"]["etag"]
    other = answer(CREATE, body("modify", "/attributes/a", {"x": 1}))["headers"]["etag"]
    assert first == again != other
    guarded = body("modify", "/attributes/a", 3, if_match=first)
    assert answer(CREATE, body("modify", "/attributes/a", {"x": 1, "y": 2}), guarded)["status"] == 204


def test_a_thing_is_retrieved_whole_in_part_and_by_a_selector() -> None:
    assert answer(CREATE, body("retrieve"))["value"] == WHOLE
    assert answer(CREATE, body("retrieve", "/features/f/properties"))["value"] == {"p": 1}
    assert answer(CREATE, body("retrieve", fields="thingId,_revision"))["value"] == {
        "thingId": THING_ID,
        "_revision": 1,
    }
    assert answer(CREATE, body("retrieve"))["headers"]["etag"] == '"rev:1"'


def test_a_thing_that_would_become_too_large_is_refused() -> None:
    settings = Settings(twin=Twin(max_thing_bytes=200))
    told = answer(BARE, body("modify", "/attributes/x", "x" * 200), settings=settings)
    assert (told["status"], told["value"]["error"]) == (413, "things:thing.toolarge")


def test_a_thing_cannot_be_nested_beyond_reading_by_one_merge_within_the_other() -> None:
    nested: Any = 1
    for _ in range(150):
        nested = {"x": nested}
    deeper = body("merge", "/attributes" + "/x" * 150, nested)
    told = answer(body("create", value={"attributes": nested}), deeper)
    assert (told["status"], told["value"]["error"]) == (400, "json.invalid")


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=10,
)


# the examples of RFC 7396, appendix A
@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_patches_of_the_rfc(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@given(values, values)
def test_a_patch_applied_twice_is_a_patch_applied_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(values, values)
def test_a_minimized_patch_has_the_effect_of_the_whole_one(target: Any, patch: Any) -> None:
    assert merge_patch(target, minimized(patch, target)) == merge_patch(target, patch)


def test_removal_by_an_expression_is_refused_instead_of_doing_nothing() -> None:
    with pytest.raises(DittoError) as found:
        merge_patch({"a": 1}, {"{{ /.*/ }}": None})
    assert found.value.error == "things:merge.invalid"


def test_a_patch_of_nothing_leaves_nulls_out_of_arrays_too() -> None:
    assert without_nulls({"a": [1, None, {"b": None}], "c": None, "d": {"e": None}}) == {"a": [1, {}], "d": {}}
