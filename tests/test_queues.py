"""Work queues in the settings: what is wrong stops the start with a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load

PAGE = Path(__file__).parent.parent / "docs" / "solace.md"

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
