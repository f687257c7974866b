from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from ackstream.jobs.twin.records import check_tags, read_tags
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import OPEN, Access, Rule
from ackstream.protocol.ditto.twin.permissions import Kind, check_address, conceal, kind_of, restrict, seen_by
from ackstream.protocol.ditto.twin.subscriptions import Publication, publication
from ackstream.protocol.errors import DittoError, condition_failed, thing_not_found
from tests.harness.effort import soon

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


def test_a_message_whose_path_is_not_that_of_its_subject_is_seen_by_those_who_may_read_everything():
    forged = signal("org.acme/lamp/things/live/messages/self-destruct", "/inbox/messages/ask", 1)
    assert seen_by(SOME, ("user:b",), forged) is None
    assert seen_by(Access([Rule(("user:b",))]), ("user:b",), forged) is forged


# -- commands and replies ----------------------------------------------------------------------------------------------

PARTS = Access(
    [
        Rule(("user:a",), ("boss:*",), "/attributes/name"),
        Rule(("user:w",), ("boss:*",), "/attributes/salary", ("WRITE",)),
        Rule(("user:w",), ("boss:*",), "/attributes/name", ("READ",)),
    ]
)


def command(action: str, path: str, value: Any = 1, **headers: str) -> Envelope:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Envelope(TopicPath.parse(f"boss/ceo/things/twin/commands/{action}"), named, path, raw(value))


def refused(subject: str, kind: Kind, given: Envelope) -> tuple[int, str]:
    with pytest.raises(DittoError) as caught:
        restrict(PARTS, (subject,), kind, given)
    return caught.value.status, caught.value.error


@pytest.mark.parametrize("path", ["/attributes/salary", "/attributes/none", "/features"])
def test_a_hidden_part_is_not_found_whether_it_exists_or_not(path: str):
    assert refused("user:a", "retrieve", command("retrieve", path)) == (404, "things:thing.notfound")
    for visible in ("/", "/attributes", "/attributes/name", "/attributes/name/first"):
        restrict(PARTS, ("user:a",), "retrieve", command("retrieve", visible))


@pytest.mark.parametrize("header", ["if_match", "if_none_match", "if_equal"])
def test_a_precondition_needs_what_it_compares_to_be_readable(header: str):
    given = {header: "x"}
    assert refused("user:a", "retrieve", command("retrieve", "/attributes", **given))[0] == 404
    restrict(PARTS, ("user:a",), "retrieve", command("retrieve", "/attributes/name", **given))
    assert refused("user:w", "modify", command("modify", "/attributes/salary", **given))[0] == 403
    assert refused("user:w", "merge", command("merge", "/attributes", {"salary": 1}, **given))[0] == 403
    restrict(PARTS, ("user:w",), "merge", command("merge", "/attributes", {"salary": 1}))


def shown(subject: str, kind: Kind, given: Envelope, reply: Envelope) -> Envelope:
    conceal(PARTS, (subject,), kind, given, reply)
    return reply


def test_the_entity_tag_is_that_of_what_the_sender_may_read_whole():
    value = {"name": "x", "salary": 7777}
    for path, part, tagged in (("/attributes", {"name": "x"}, False), ("/attributes/name", "x", True)):
        asked = command("retrieve", path)
        whole = value if path == "/attributes" else "x"
        found = shown("user:a", "retrieve", asked, Envelope(asked.topic, {"etag": "t"}, path, raw(whole), status=200))
        assert msgspec.json.decode(found.value) == part
        assert ("etag" in found.headers) is tagged


def test_one_who_merges_a_part_gets_no_entity_tag_of_the_rest():
    asked = command("merge", "/attributes", {"salary": 1})
    plain = Envelope(asked.topic, {"etag": "t", "x": "y"}, "/attributes", status=204)
    assert shown("user:w", "merge", asked, plain).headers == {"x": "y"}
    acks = [Acknowledgement("twin-persisted", 204, headers={"etag": "t", "x": "y"}), Acknowledgement("a-b", 200)]
    whole = write_acks(acks, thing_id="boss:ceo", channel="twin", headers={"etag": "t"})
    found = shown("user:w", "merge", asked, whole)
    assert "etag" not in found.headers
    assert msgspec.json.decode(found.value) == {
        "twin-persisted": {"status": 204, "headers": {"x": "y"}}, "a-b": {"status": 200}
    }  # fmt: skip


def test_a_merge_by_one_who_may_change_a_part_creates_no_thing():
    asked = command("merge", "/", {"attributes": {"salary": 1}})
    restrict(PARTS, ("user:w",), "merge", asked)
    # as the twin takes it: it fails if there is no thing
    assert check_tags(read_tags("if-match", asked.headers["if-match"]), None, '"rev:1"', action="merge") is None
    with pytest.raises(DittoError) as caught:
        check_tags(read_tags("if-match", asked.headers["if-match"]), None, None, action="merge")
    failed = error_envelope(caught.value, thing_id="boss:ceo", channel="twin", headers={})
    with pytest.raises(DittoError) as caught:
        conceal(PARTS, ("user:w",), "merge", asked, failed)
    assert caught.value.to_dict() == thing_not_found("boss:ceo").to_dict()
    other = error_envelope(condition_failed(), thing_id="boss:ceo", channel="twin", headers={})
    assert shown("user:w", "merge", asked, other) is other
    whole = command("merge", "/", {"attributes": {"salary": 1}})
    restrict(OPEN, ("anonymous",), "merge", whole)
    assert not whole.headers


@pytest.mark.parametrize("value", [UNSET, raw("x"), raw(412), raw({"message": 5}), raw(["message"])])
def test_a_device_may_answer_412_with_anything(value: Any) -> None:
    asked = Envelope(TopicPath.parse("boss/ceo/things/live/messages/ask"), {}, "/inbox/messages/ask", raw(1))
    answer = Envelope(asked.topic, {}, asked.path, value, status=412)
    assert shown("user:boss", "message", asked, answer) is answer


@pytest.mark.parametrize(
    ("path", "patch", "allowed"),
    [
        ("/", {"attributes": {"salary": 1}}, True),
        ("/", {"attributes": {"salary": {"a": {"b": 1}}}}, True),
        ("/", {"attributes": {"salary": None}}, True),
        ("/attributes/salary/deep", {}, True),
        ("/attributes", {"salary": 1, "name": 2}, False),
        ("/attributes", {}, False),
        ("/", {"attributes": {"salary": 1}, "features": {}}, False),
        # an empty key is one
        ("/", {"attributes": {"": {"salary": 1}}}, False),
        ("/", {"attributes": {"salary": 1, "other/salary": 1}}, False),
        ("/attributes", None, False),
    ],
)
def test_a_merge_needs_write_on_each_path_that_it_changes(path: str, patch: Any, allowed: bool):  # noqa: FBT001
    asked = command("merge", path, patch)
    if allowed:
        restrict(PARTS, ("user:w",), "merge", asked)
    else:
        assert refused("user:w", "merge", asked)[0] == 403


def test_a_receiver_gets_the_patch_that_was_compared_with_the_rules():
    asked = command("merge", "/", None)
    asked.value = msgspec.Raw(b'{"attributes": {"name": 1}, "attributes": {"salary": 1, "salary": 2}}')
    restrict(PARTS, ("user:w",), "merge", asked)
    assert bytes(asked.value) == b'{"attributes":{"salary":2}}'


def test_a_large_patch_is_checked_at_once():
    rules = [Rule(("user:m",), ("*",), f"/attributes/k{number}", ("WRITE",)) for number in range(2_000)]
    asked = command("merge", "/attributes", {f"k{number % 2_000}x" * 2: number for number in range(9_000)})
    allowed = command("merge", "/attributes", {f"k{number}": number for number in range(2_000)})
    with soon(0.1):
        with pytest.raises(DittoError):
            restrict(Access(rules), ("user:m",), "merge", asked)
        restrict(Access(rules), ("user:m",), "merge", allowed)


def test_a_patch_of_too_many_members_is_refused_before_it_is_compared_with_rules():
    larger = command("merge", "/attributes", {f"k{number}": number for number in range(10_001)})
    assert refused("user:w", "merge", larger) == (400, "things:merge.invalid")


def test_nothing_and_nothing_visible_are_the_same():
    asked = command("retrieve", "/attributes")
    hidden = Envelope(asked.topic, {}, "/attributes", raw({"salary": 1}), status=200)
    absent = DittoError(404, "things:attributes.notfound", "There are none.")
    for reply in (hidden, error_envelope(absent, thing_id="boss:ceo", channel="twin", headers={})):
        with pytest.raises(DittoError) as caught:
            conceal(PARTS, ("user:a",), "retrieve", asked, reply)
        assert caught.value.to_dict() == thing_not_found("boss:ceo").to_dict()


# -- what a command is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "path", "kind"),
    [
        ("org.acme/lamp/things/live/messages/ask", "/inbox/messages/ask", "message"),
        ("org.acme/lamp/things/twin/commands/create", "/", "create"),
        ("org.acme/lamp/things/twin/commands/modify", "/attributes/x", "modify"),
        ("org.acme/lamp/things/live/commands/retrieve", "/attributes/x", "retrieve"),
        ("_/_/things/twin/commands/retrieve", "/", "many"),
        ("_/_/things/twin/commands/retrieve", "/search/things", "search"),
        ("_/_/things/twin/commands/retrieve", "/search/things/count", "count"),
    ],
)
def test_topic_and_path_say_what_access_a_command_needs(topic: str, path: str, kind: Kind):
    assert kind_of(Envelope(TopicPath.parse(topic), {}, path)) == kind


@pytest.mark.parametrize(
    ("kind", "topic", "path", "value", "error"),
    [
        ("message", "org.acme/lamp/things/live/messages/ask", "/inbox/messages/tell", 1, "unknown.path"),
        ("many", "_/_/things/twin/commands/retrieve", "/attributes", {"thingIds": []}, "unknown.path"),
        ("many", "_/_/things/twin/commands/retrieve", "/", {"thingIds": "a"}, "json.field.missing"),
        ("search", "_/_/things/twin/commands/retrieve", "/search/things", ["eq"], "json.invalid"),
    ],
)
def test_a_command_that_does_not_fit_its_path_is_refused(kind: Kind, topic: str, path: str, value: Any, error: str):
    with pytest.raises(DittoError) as caught:
        check_address(kind, Envelope(TopicPath.parse(topic), {}, path, raw(value)))
    assert (caught.value.status, caught.value.error.partition(":")[2] or caught.value.error) == (400, error)
