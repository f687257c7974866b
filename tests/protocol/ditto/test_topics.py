from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.topics import CRITERIA, GROUPS, TopicPath
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal

WORDS = [*GROUPS, *CRITERIA, "twin", "live", "none", "modify", "created", "subscribe", "my-ack", "ns", "a:b", "", "ä"]


def refused(text: str) -> str | None:
    error = refusal(TopicPath.parse, text)
    assert (error.status, error.error) == (400, "protocoladapter:unknown.topicpath")
    assert error.message == f"The topic path '{text}' is not supported."
    return error.description


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("", "The topic path has no namespace part."),
        ("ns", "The topic path has no entity name part."),
        ("/", "The topic path has no entity name part."),
        ("ns/name", "The topic path has no group part."),
        ("ns//things/twin/errors", "The topic path has no group part."),
        ("ns/name//things", "Group name </things> is unknown."),
        ("ns/name/things", "The topic path has no channel part."),
        ("ns/name/things/", "The topic path has no channel part."),
        ("ns/name/things/twin", "The topic path has no criterion part."),
        ("ns/name/policies", "The topic path has no criterion part."),
        ("ns/name/things/twin/acks2", "Criterion name <acks2> is unknown."),
        ("ns/name/things/twin/commands", "The topic path has no action part."),
        ("ns/name/things/twin/commands//modify", "Action name </modify> is unknown."),
        ("ns/name/things/twin/commands/MODIFY", "Action name <MODIFY> is unknown."),
        ("ns/name/things/twin/search", "The topic path has no search action part."),
        ("ns/name/things/twin/search/find", "Search action name <find> is unknown."),
        ("ns/name/things/twin/streaming/subscribe", "Streaming action name <subscribe> is unknown."),
    ],
)
def test_a_bad_topic_path_is_refused_with_the_part_that_is_wrong(text: str, description: str) -> None:
    assert refused(text) == description
    assert refused(text) == description


def test_an_empty_segment_ends_the_parsing_and_stays_in_the_rest() -> None:
    assert TopicPath.parse("ns/name/things/twin/acks//x").subject == "/x"
    assert TopicPath.parse("ns/name/things/live/messages/a//b/c").subject == "a//b/c"


def test_a_slash_at_the_end_changes_nothing() -> None:
    assert TopicPath.parse("ns/name/things/twin/acks/") == TopicPath.parse("ns/name/things/twin/acks")


def test_a_leading_slash_is_an_empty_namespace() -> None:
    topic = TopicPath.parse("/name/things/twin/errors")
    assert (topic.namespace, topic.entity, str(topic)) == ("", "name", "/name/things/twin/errors")


def test_the_thing_id_is_namespace_and_name() -> None:
    assert TopicPath.parse("org.example/a:b/things/twin/errors").thing_id == "org.example:a:b"


def test_a_long_topic_path_is_parsed_too() -> None:
    subject = "s" * 10_000
    assert TopicPath.parse(f"ns/name/things/live/messages/{subject}").subject == subject
    assert refused("ns/name/" + "x" * 900) == f"Group name <{'x' * 900}> is unknown."


@pytest.mark.parametrize(
    "text",
    [
        "ns/name/things/twin/commands/modify",
        "ns/name/things/live/messages/ask/again",
        "ns/name/things/twin/search/subscribe",
        "ns/name/things/twin/streaming/subscribeForPersistedEvents",
        "ns/name/policies/commands/delete",
        "ns/name/policies/announcements/subjectDeletion",
        "_/connection/connections/announcements/opened",
        "ns/name/things/live/acks/my-ack",
    ],
)
def test_a_parsed_topic_path_prints_as_it_was(text: str) -> None:
    assert str(TopicPath.parse(text)) == text


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=9).map("/".join))
def test_any_text_is_a_topic_path_or_refused_and_printing_is_stable(text: str) -> None:
    topic = outcome(TopicPath.parse, text)
    if isinstance(topic, DittoError):
        assert topic.status == 400
    elif not (topic.channel is None and topic.group == "things"):
        assert TopicPath.parse(str(topic)) == topic


@pytest.mark.parametrize(
    ("text", "group", "criterion", "action"),
    [
        ("_/_/policies/commands/checkPermissions", "policies", "commands", "checkPermissions"),
        ("_/_/policies/commands/retrieve", "policies", "commands", "retrieve"),
        ("_/_/things/twin/commands/retrieve", "things", "commands", "retrieve"),
        ("_/_/things/twin/search/subscribe", "things", "search", None),
    ],
)
def test_a_topic_path_may_concern_no_entity_in_particular(text: str, group: str, criterion: str, action: str) -> None:
    topic = TopicPath.parse(text)
    assert (topic.namespace, topic.entity, topic.group) == ("_", "_", group)
    assert (topic.criterion, topic.action, str(topic)) == (criterion, action, text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("ns/name/things/twin/commands/modify", True),
        ("ns/name/things/live/messages/ask/more", True),
        ("ns/name/things/twin/commands/modify/", False),
        ("ns/victim/things/twin/commands/delete/things/twin/commands/modify", False),
        ("ns/name/things/twin/errors/x", False),
    ],
)
def test_a_whole_topic_has_nothing_after_its_last_part(text: str, whole: bool) -> None:  # noqa: FBT001 - a table
    assert TopicPath.parse(text)
    if whole:
        assert str(TopicPath.parse_whole(text)) == text
    else:
        error = refusal(TopicPath.parse_whole, text)
        assert error.description == f"The topic path continues after <{TopicPath.parse(text)}>."
