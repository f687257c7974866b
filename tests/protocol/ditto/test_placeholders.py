from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.placeholders import Context, Pipeline, PlaceholderError, Template
from ackstream.protocol.ditto.topics import TopicPath

TOPIC = TopicPath.parse("org.acme/Lamp-1/things/live/messages/turn/on")
EVENT = TopicPath.parse("org.acme/Lamp-1/things/twin/events/modified")
CONTEXT = Context({"qos": "1", "device": "a/b/c", "empty": ""}, "plant", TOPIC)


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("header:qos", "1"),
        ("header:QoS", "1"),
        ("header:missing", None),
        ("header:empty", ""),
        ("connection:id", "plant"),
        ("thing:id", "org.acme:Lamp-1"),
        ("thing:namespace", "org.acme"),
        ("thing:name", "Lamp-1"),
        ("topic:full", "org.acme/Lamp-1/things/live/messages/turn/on"),
        ("topic:entityName", "Lamp-1"),
        ("topic:group", "things"),
        ("topic:channel", "live"),
        ("topic:criterion", "messages"),
        ("topic:subject", "turn/on"),
        ("topic:action", None),
        ("topic:action-subject", "turn/on"),
        ("thing:name|fn:lower()", "lamp-1"),
        ("thing:name | fn:upper( )", "LAMP-1"),
        ("header:missing|fn:upper()", None),
        ("header:device|fn:substring-before('/')", "a"),
        ("header:device|fn:substring-after('/')", "b/c"),
        ("header:device|fn:substring-after('x')", None),
        ("header:device|fn:substring-before(\"x\")|fn:default('d')", "d"),
        ("header:device|fn:replace('/','|')", "a|b|c"),
        ("header:missing|fn:default(thing:name)", "Lamp-1"),
        ("header:missing|fn:default(header:also-missing)", None),
        ("header:qos|fn:default('d')", "1"),
        ("header:qos|fn:delete()", None),
        ("header:qos|fn:delete()|fn:default('d')", None),
        ("header:device|fn:filter(header:qos,'eq','1')", "a/b/c"),
        ("header:device|fn:filter(header:qos,'ne','1')", None),
        ("header:device|fn:filter(header:qos,'ne',1)", None),
        ("header:device|fn:filter(header:qos,'ne',0)", "a/b/c"),
        ("header:device|fn:filter(header:missing,'ne','1')", "a/b/c"),
        ("header:device|fn:filter(header:missing,'eq','')", "a/b/c"),
        ("header:device|fn:filter(header:qos,'exists')", "a/b/c"),
        ("header:device|fn:filter(header:missing,'exists')", None),
        ("header:device|fn:filter(header:missing,'exists','false')", "a/b/c"),
        ("header:device|fn:filter(header:qos,'exists','true')", "a/b/c"),
        ("header:device|fn:filter('like','a/*')", "a/b/c"),
        ("header:device|fn:filter('like','x*|a*')", "a/b/c"),
        ("header:device|fn:filter('eq','a')", None),
        ("header:missing|fn:filter('1','eq','1')", None),
        ('header:device|fn:filter(header:qos,"eq","1")|fn:replace("/","")', "abc"),
    ],
)
def test_a_pipeline_comes_to_a_text_or_to_nothing(text: str, expect: str | None) -> None:
    assert Pipeline.parse(text).resolve(CONTEXT) == expect


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a placeholder"),
        ("header:", "not a placeholder"),
        ("thing:colour", "thing:colour"),
        ("thing:id|lower", "'lower' is not a function"),
        ("thing:id|fn:shout()", "fn:shout"),
        ("thing:id|fn:lower('x')", "takes 0"),
        ("thing:id|fn:default()", "takes 1"),
        ("thing:id|fn:default('a' 'b')", "commas"),
        ("thing:id|fn:default(x)", "quotes"),
        ("thing:id|fn:default('it''s')", "quotes"),
        ("thing:id|fn:default(thing:colour)", "thing:colour"),
        ("thing:id|fn:default('open)", "quotes"),
        ("thing:id|fn:filter('a','is','b')", "eq, ne"),
        ("thing:id|fn:filter('a','b')", "eq, ne"),
        ("thing:id|fn:filter('eq')", "takes 2 or 3"),
    ],
)
def test_what_cannot_be_read_is_told_when_it_is_parsed(text: str, said: str) -> None:
    with pytest.raises(PlaceholderError, match=re.escape(said)):
        Pipeline.parse(text)


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("", ""),
        ("plain", "plain"),
        ("{{ thing:id }}", "org.acme:Lamp-1"),
        ("events/{{thing:namespace}}/{{ thing:name | fn:lower() }}!", "events/org.acme/lamp-1!"),
        ("events/{{ header:missing }}", None),
        ("events/{{ header:missing | fn:default('none') }}", "events/none"),
        ("{{ thing:name | fn:default('}') }}", "Lamp-1"),
        ("{ {", "{ {"),
    ],
)
def test_a_template_is_filled_in_whole_or_not_at_all(text: str, expect: str | None) -> None:
    assert Template.parse(text).resolve(CONTEXT) == expect


def test_braces_that_stay_open_are_refused() -> None:
    with pytest.raises(PlaceholderError, match="is not closed"):
        Template.parse("events/{{ thing:id")


def test_without_a_message_its_placeholders_are_unresolved() -> None:
    assert Pipeline.parse("thing:id").resolve(Context({})) is None
    assert Pipeline.parse("topic:action-subject").resolve(Context({}, "", EVENT)) == "modified"


def test_a_pipeline_of_functions_alone_takes_a_start() -> None:
    pipeline = Pipeline.parse("fn:default('d')|fn:upper()")
    assert pipeline.resolve(CONTEXT) == "D"
    assert pipeline.resolve(CONTEXT, "start") == "START"


@given(st.text(alphabet="{}|'\"fn:heador(,) x", max_size=30))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        template = Template.parse(text)
    except PlaceholderError:
        return
    assert "{{" in text or template.resolve(CONTEXT) == text


def test_the_entity_and_the_address_of_a_message_are_placeholders() -> None:
    context = Context({}, "plant", TOPIC, "devices/7")
    assert Template.parse("{{ source:address }}|{{ entity:id }}").resolve(context) == f"devices/7|{TOPIC.thing_id}"
    assert Pipeline.parse("source:address").resolve(CONTEXT) is None


def test_what_is_the_same_for_all_messages_is_the_template_filled_with_one_text() -> None:
    assert Template.parse("a/{{ header:x | fn:lower() }}/{{ thing:id }}").filled("-") == "a/-/-"
