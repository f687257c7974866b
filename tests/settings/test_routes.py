from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load


def _routes(*routes: dict[str, Any], **environment: str) -> Any:
    return load(None, {"ACKSTREAM_ROUTES": json.dumps(routes), **environment})


def test_a_route_passes_everything_on_unless_it_says_what() -> None:
    settings = _routes({"name": "plant", "topic_prefix": "plant-"}, ACKSTREAM_KAFKA_OPTIONS_PYTHON='{"a": "1"}')
    (route,) = settings.routes
    assert (route.writers, route.topics, route.label) == (("*",), ("*",), None)
    target = route.target(settings.kafka)
    assert (target.bootstrap, target.topic_prefix, target.options.python) == ("localhost:9092", "plant-", {"a": "1"})


def test_other_brokers_have_options_of_their_own() -> None:
    settings = _routes(
        {"name": "plant", "bootstrap": "plant:9092", "options": {"b": "2"}}, ACKSTREAM_KAFKA_OPTIONS_PYTHON='{"a": "1"}'
    )
    target = settings.routes[0].target(settings.kafka)
    assert (target.bootstrap, target.topic_prefix, target.options.python) == ("plant:9092", "", {"b": "2"})


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([{"name": "plant"}], ["the route plant ends where it begins: give it a bootstrap or a topic_prefix"]),
        ([{"name": "plant", "bootstrap": "localhost:9092"}], ["the route plant ends where it begins"]),
        ([{"name": "a b", "topic_prefix": "x"}], ["routes.0.name is 'a b'"]),
        ([{"name": "plant", "topic_prefix": "x", "writers": []}], ["routes.0.writers"]),
        ([{"name": "plant", "topic_prefix": "x", "label": "no:label:here/"}], ["routes.0.label is 'no:label:here/'"]),
        ([{"name": "plant", "topic_prefix": "x", "label": "twin-persisted"}], ["routes.0.label is 'twin-persisted'"]),
        ([{"name": "plant", "prefix": "x"}], ["routes.0.prefix is not known", "topic_prefix"]),
        (
            [{"name": "plant", "topic_prefix": "x"}, {"name": "plant", "topic_prefix": "y"}],
            ["two routes have the name"],
        ),
    ],
)
def test_a_wrong_route_is_reported_with_key_value_and_remedy(routes: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        _routes(*routes)
    for word in words:
        assert word in str(refusal.value)
