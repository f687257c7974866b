"""Settings of metrics and log: off and on loopback unless they say otherwise."""

from __future__ import annotations

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Metrics, Settings, load


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        (Metrics(), False),
        (Metrics(port=9464), False),
        (Metrics(host="::1", port=9464), False),
        (Metrics(host="0.0.0.0"), False),
        (Metrics(host="0.0.0.0", port=9464), True),
        (Metrics(host="10.0.0.1", port=9464), True),
    ],
)
def test_an_endpoint_that_other_hosts_reach_is_warned_of(settings: Metrics, *, warns: bool) -> None:
    found = list(Settings(metrics=settings).warnings())
    assert len(found) == warns
    assert all(f"{settings.host}:9464 without a login" in text for text in found)


def test_nothing_listens_by_default() -> None:
    assert Settings().metrics == Metrics(host="127.0.0.1", port=0)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("METRICS_PORT", "70000", r"metrics\.port"),
        ("LOG_LEVEL", "loud", r"log\.level.*debug"),
        ("LOG_FORMAT", "xml", r"log\.format.*json"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load(environment={f"ACKSTREAM_{name}": value})
