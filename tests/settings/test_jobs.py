"""Work queues in the settings: presets, delays, and a sentence that stops the start for everything that is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load
from ackstream.settings.jobs import QueueBackoff

PAGES = Path(__file__).parents[2] / "docs"

ORDERS = {"name": "orders", "topics": ["orders/*"]}


def _load(*queues: dict[str, Any]) -> Any:
    return load(None, {"ACKSTREAM_QUEUES": json.dumps(queues)}).queues


@pytest.mark.parametrize(
    ("given", "delays"),
    [
        ({}, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]),
        ({"initial": "500ms", "multiplier_percent": 300, "max": "10s"}, [500, 1_500, 4_500, 10_000, 10_000]),
        ({"multiplier_percent": 150, "max": "9s"}, [1_000, 1_500, 2_250, 3_375]),
        ({"initial": "2s", "multiplier_percent": 100, "max": "9s"}, [2_000, 2_000, 2_000]),
        ({"initial": "5s", "max": "3s"}, [3_000, 3_000]),
    ],
)
def test_delays_grow_to_their_limit(given: dict[str, Any], delays: list[int]) -> None:
    backoff = QueueBackoff(**given)
    assert [backoff.delay(redelivery) for redelivery in range(1, len(delays) + 1)] == delays


def test_the_millionth_delay_is_the_longest() -> None:
    assert QueueBackoff().delay(1_000_000) == 64_000


SOLACE = {
    "max_backlog": 10_000, "settler": "holder", "fairness": "round-robin", "respect_ttl": False, "early": 0, "lease": 0,
    "max_ttl": 0, "max_deliveries": 0, "dead_letters": True, "respect_eligible": True,
}  # fmt: skip
AMPS = SOLACE | {
    "max_backlog": 1, "settler": "sublet", "fairness": "proportional", "respect_ttl": True, "early": 86_400_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "rules"),
    [
        ({}, SOLACE),
        ({"preset": "solace", "max_backlog": None}, SOLACE),
        ({"preset": "amps"}, AMPS),
        ({"preset": "amps", "at_most_once": True}, AMPS | {"fairness": "round-robin"}),
        (
            {"preset": "amps", "at_most_once": True, "fairness": "fast"},
            AMPS | {"at_most_once": True, "fairness": "fast"},
        ),
        ({"preset": "amps", "early": "5m", "max_backlog": 0}, AMPS | {"early": 300_000, "max_backlog": 0}),
        ({"dead_letters": False, "settler": "strict"}, SOLACE | {"dead_letters": False, "settler": "strict"}),
    ],
)
def test_a_queue_follows_its_preset_except_for_the_keys_that_are_given(
    keys: dict[str, Any], rules: dict[str, Any]
) -> None:
    (queue,) = _load({**ORDERS, **keys})
    assert {key: getattr(queue, key) for key in rules} == rules


def test_durations_are_read_as_everywhere() -> None:
    (queue,) = _load({**ORDERS, "lease": "60s", "max_ttl": "1h", "backoff": {"initial": "500ms"}})
    assert (queue.lease, queue.max_ttl, queue.backoff.initial, queue.backoff.max) == (60_000, 3_600_000, 500, 64_000)


@pytest.mark.parametrize(
    ("keys", "milliseconds"),
    [
        ({}, 86_400_000),
        ({"lease": "24h"}, 86_400_000),
        ({"lease": "48h"}, 172_800_000),
        ({"lease": "48h", "max_lease": None}, 172_800_000),
        ({"lease": "1m", "max_lease": "1m"}, 60_000),
        ({"preset": "amps", "max_lease": "7d"}, 604_800_000),
    ],
)
def test_a_lease_may_be_renewed_for_a_day_or_its_own_length_unless_the_queue_names_the_limit(
    keys: dict[str, Any], milliseconds: int
) -> None:
    (queue,) = _load({**ORDERS, **keys})
    assert queue.max_lease == milliseconds


@pytest.mark.parametrize("lease", [60, "0s"])
def test_a_wrong_lease_is_one_error_although_the_limit_depends_on_it(lease: Any) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load({**ORDERS, "lease": lease})
    assert "max_lease" not in str(refusal.value)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([{"name": "orders"}], ["queues.0.topics is missing"]),
        ([{**ORDERS, "topics": []}], ["queues.0.topics"]),
        ([{**ORDERS, "topics": [""]}], ["queues.0.topics.0", "must not be empty"]),
        ([{**ORDERS, "name": "a b"}], ["queues.0.name is 'a b'"]),
        ([{**ORDERS, "type": "private"}], ["queues.0.type is 'private'", "'exclusive' or 'shared'"]),
        ([{**ORDERS, "lease": 60}], ["queues.0.lease is 60", "such as 250ms"]),
        (
            [{**ORDERS, "lease": "25h", "max_lease": "24h"}],
            ["queues.0.max_lease is '24h'", "lease, which is 90000000ms", "raise max_lease"],
        ),
        ([{**ORDERS, "lease": "0s"}], ["queues.0.lease is '0s'", "longer than zero"]),
        ([{**ORDERS, "max_backlog": -1}], ["queues.0.max_backlog is -1", "must be 0 or more"]),
        ([{**ORDERS, "settler": "anybody"}], ["queues.0.settler is 'anybody'", "'sublet'"]),
        ([{**ORDERS, "leese": "60s"}], ["queues.0.leese is not known", "lease"]),
        ([{**ORDERS, "backoff": {"multiplier_percent": 50}}], ["queues.0.backoff.multiplier_percent is 50"]),
        ([ORDERS, ORDERS], ["two queues have the name 'orders'"]),
    ],
)
def test_a_wrong_queue_is_reported_with_key_value_and_remedy(queues: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(*queues)
    for word in words:
        assert word in str(refusal.value)


def test_the_settings_shown_in_the_docs_are_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", (PAGES / "guides/share-work.md").read_text("utf-8"), re.DOTALL)
    file = tmp_path / "ackstream.toml"
    file.write_text(shown, "utf-8")
    (queue,) = load(file, {}).queues
    assert (queue.name, queue.lease, queue.backoff.max) == ("orders", 60_000, 60_000)
