"""Replication destinations in the settings: what is wrong stops the start with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load

STANDBY = {"name": "standby", "path": "/standby", "type": "sync"}


def _load(*destinations: dict[str, Any], **environment: str) -> Any:
    return load(None, {"ACKSTREAM_DESTINATIONS": json.dumps(destinations), **environment}).destinations


def test_the_rules_of_a_destination_are_off_unless_they_are_given() -> None:
    (plain,) = _load(STANDBY)
    assert (plain.ack_conflation_interval, plain.downgrade_age, plain.upgrade_age) == (1000, None, None)
    (ruled,) = _load({**STANDBY, "downgrade_age": "60s", "upgrade_age": "30s", "check_interval": "5s"})
    assert (ruled.downgrade_age, ruled.upgrade_age, ruled.check_interval) == (60_000, 30_000, 5_000)


@pytest.mark.parametrize(
    ("destinations", "words"),
    [
        ([{"name": "standby", "path": "/standby"}], ["destinations.0.type", "Field required"]),
        ([{**STANDBY, "type": "both"}], ["destinations.0.type is 'both'", "'sync' or 'async'"]),
        ([{**STANDBY, "name": "a/b"}], ["destinations.0.name is 'a/b'"]),
        ([{**STANDBY, "path": ""}], ["destinations.0.path is ''"]),
        ([{**STANDBY, "downgrade_age": "0s"}], ["destinations.0.downgrade_age is '0s'", "longer than zero"]),
        ([{**STANDBY, "ack_conflation": "1s"}], ["destinations.0.ack_conflation is not known", "ack_conflation_inter"]),
        ([{**STANDBY, "upgrade_age": "30s"}], ["never downgraded: set downgrade_age"]),
        ([{**STANDBY, "upgrade_age": "9s", "downgrade_age": "9s"}], ["set upgrade_age below downgrade_age"]),
        ([{**STANDBY, "type": "async", "downgrade_age": "9s"}], ["nothing waits for standby, which is async"]),
        ([STANDBY, {**STANDBY, "path": "/other"}], ["two destinations have the name 'standby': give each its own"]),
        ([STANDBY, {**STANDBY, "name": "other"}], ["the path of other is that of standby"]),
        ([{**STANDBY, "path": "/lake/sub/../"}], ["the path of standby is the lake's own (lake.path)"]),
        ([{**STANDBY, "path": "s3a://b/l/"}, {**STANDBY, "name": "o", "path": "s3a://b/l"}], ["is that of standby"]),
    ],
)
def test_what_is_wrong_is_said_with_key_value_and_remedy(destinations: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(*destinations, ACKSTREAM_LAKE_PATH="/lake")
    for word in words:
        assert word in str(refusal.value)
