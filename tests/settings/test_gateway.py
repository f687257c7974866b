"""``[[quotas]]``: limits of tenants, and a sentence for those that would limit nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Quota, load

THINGS: dict[str, Any] = {"namespaces": ["org.acme"], "max_things": 3}
REQUESTS: dict[str, Any] = {"subjects": ["user:acme-*"], "max_open_requests": 5}


def read(**parts: Any) -> Quota:
    (found,) = load(environment={"ACKSTREAM_QUOTAS": json.dumps([{"name": "acme", **parts}])}).quotas
    return found


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "acme limits nothing"),
        ({"max_things": 3}, "max_things of acme counts nothing: name its namespaces"),
        ({"max_sockets": 3}, "max_sockets of acme counts nothing: name its subjects"),
        (THINGS | {"max_things": 0}, "the namespaces of acme have no limit: set max_things or max_bytes"),
        (THINGS | {"subjects": ["user:a"]}, "the subjects of acme have no limit"),
        (THINGS | {"max_things": -1}, "max_things"),
    ],
)
def test_a_quota_that_limits_nothing_is_refused_with_a_sentence(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read(**parts)


def test_two_quotas_have_different_names() -> None:
    quota = {"name": "acme", **THINGS}
    with pytest.raises(SettingsError, match="two quotas have the name 'acme'"):
        load(environment={"ACKSTREAM_QUOTAS": json.dumps([quota, quota])})


def test_names_are_patterns() -> None:
    found = read(**THINGS | REQUESTS)
    assert found.has_subject(("jwt:x", "user:acme-7"))
    assert not found.has_subject(("user:acme",))
