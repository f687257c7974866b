"""Work queues in the settings: what is wrong stops the start with a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import InconsistentQosError, SettingsError
from ackstream.settings import load
from ackstream.settings.queues import Backoff, QueueRules, QueueSettings, amps, rules_of, solace


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(), [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]),
        (Backoff(500, 300, 10_000), [500, 1_500, 4_500, 10_000, 10_000]),
        (Backoff(1_000, 150, 9_000), [1_000, 1_500, 2_250, 3_375]),
        (Backoff(2_000, 100, 9_000), [2_000, 2_000, 2_000]),
        (Backoff(5_000, 200, 3_000), [3_000, 3_000]),
        (Backoff(0, 200, 3_000), [0, 0]),
    ],
)
def test_delays_grow_to_their_limit(backoff: Backoff, delays: list[int]) -> None:
    assert [backoff.delay(redelivery) for redelivery in range(1, len(delays) + 1)] == delays


def test_the_thousandth_delay_is_the_longest() -> None:
    assert Backoff().delay(1_000_000) == 64_000


@pytest.mark.parametrize("values", [(-1, 200, 5), (1, 99, 5), (1, 200, -5)])
def test_delays_that_would_go_backwards_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(InconsistentQosError, match="at least 0 ms and 100 % are needed"):
        Backoff(*values)


@pytest.mark.parametrize("limit", ["max_backlog", "lease_ms", "max_deliveries", "max_failures", "max_ttl_ms"])
def test_a_limit_below_nothing_is_refused(limit: str) -> None:
    values: dict[str, Any] = {limit: -1}
    with pytest.raises(InconsistentQosError, match=f"{limit} is -1; it must be at least 0"):
        QueueRules(**values)


def test_solace_counts_redeliveries() -> None:
    assert solace().max_deliveries == 0
    assert solace(max_redelivery=2).max_deliveries == 3
    assert solace(max_redelivery=2, redelivery_enabled=False).max_deliveries == 1


def test_amps_has_its_own_defaults() -> None:
    assert (amps().max_backlog, amps().settler, amps().fairness) == (1, "sublet", "proportional")
    assert amps(at_most_once=True).fairness == "round-robin"
    assert amps(fairness="fast", settler="strict").settler == "strict"


@pytest.mark.parametrize(
    ("keys", "rules"),
    [
        ({}, solace()),
        ({"preset": "amps"}, amps()),
        ({"preset": "amps", "at_most_once": True}, amps(at_most_once=True)),
        ({"type": "exclusive", "max_deliveries": 3}, solace(exclusive=True, max_redelivery=2)),
        (
            {"preset": "amps", "lease": "60s", "max_ttl": "1h", "early": "5m", "max_backlog": 0},
            amps(lease_ms=60_000, max_ttl_ms=3_600_000, early_ms=300_000, max_backlog=0),
        ),
        (
            {"backoff": {"initial": "2s"}, "dead_letters": False, "respect_ttl": True, "settler": "strict"},
            solace(backoff=Backoff(2_000, 200, 64_000), dead_letters=False, respect_ttl=True, settler="strict"),
        ),
    ],
)
def test_the_settings_say_how_a_queue_differs_from_its_preset(keys: dict[str, Any], rules: QueueRules) -> None:
    assert rules_of(QueueSettings(name="q", topics=("*",), **keys)) == rules


PAGE = Path(__file__).parents[2] / "docs" / "solace.md"

ORDERS = {"name": "orders", "topics": ["orders/*"]}


def _load(*queues: dict[str, Any]) -> Any:
    return load(None, {"ACKSTREAM_QUEUES": json.dumps(queues)}).queues


def test_what_is_not_said_is_left_to_the_preset() -> None:
    (queue,) = _load(ORDERS)
    given = queue.model_dump(exclude_none=True)
    assert given == {"name": "orders", "topics": ("orders/*",), "preset": "solace", "type": "shared"}


def test_durations_are_read_as_everywhere() -> None:
    (queue,) = _load({**ORDERS, "lease": "60s", "max_ttl": "1h", "backoff": {"initial": "500ms"}})
    assert (queue.lease, queue.max_ttl, queue.backoff.initial, queue.backoff.max) == (60_000, 3_600_000, 500, 64_000)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([{"name": "orders"}], ["queues.0.topics", "Field required"]),
        ([{**ORDERS, "topics": []}], ["queues.0.topics"]),
        ([{**ORDERS, "topics": [""]}], ["queues.0.topics", "a topic is empty"]),
        ([{**ORDERS, "name": "a b"}], ["queues.0.name is 'a b'"]),
        ([{**ORDERS, "type": "private"}], ["queues.0.type is 'private'", "'exclusive' or 'shared'"]),
        ([{**ORDERS, "lease": 60}], ["queues.0.lease is 60", "such as 250ms"]),
        ([{**ORDERS, "lease": "0s"}], ["queues.0.lease is '0s'", "longer than zero"]),
        ([{**ORDERS, "max_backlog": -1}], ["queues.0.max_backlog is -1", "greater than or equal to 0"]),
        ([{**ORDERS, "settler": "anybody"}], ["queues.0.settler is 'anybody'", "'sublet'"]),
        ([{**ORDERS, "leese": "60s"}], ["queues.0.leese is not known", "lease"]),
        ([{**ORDERS, "backoff": {"multiplier_percent": 50}}], ["queues.0.backoff.multiplier_percent is 50"]),
        ([ORDERS, ORDERS], ["two queues have the name 'orders'"]),
    ],
)
def test_what_is_wrong_is_said_with_key_value_and_remedy(queues: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(*queues)
    for word in words:
        assert word in str(refusal.value)


def test_the_settings_that_the_page_shows_are_right(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "ackstream.toml"
    file.write_text(shown, "utf-8")
    (queue,) = load(file, {}).queues
    assert (queue.name, queue.lease, queue.backoff.max) == ("orders", 60_000, 60_000)
