from __future__ import annotations

from ackstream.delivery.settle.rules import RequiredRole, SettleRules, settle_rules
from ackstream.settings import Settings


def test_roles_are_required_by_the_writers_names() -> None:
    rules = SettleRules((RequiredRole("Logger", 2, ("plant-*",)), RequiredRole("Logger", 1)))
    assert (rules.quorums("plant-1"), rules.quorums("w1")) == ({"Logger": 2}, {"Logger": 1})


def test_the_settings_say_it_in_their_words() -> None:
    given = {"required": [{"role": "Logger", "quorum": 2}], "reader_lease": "5s", "reader_memory": "1h", "shards": 3}
    found = settle_rules(Settings.model_validate({"settle": {**given, "max_holes": 7}}))
    assert found == SettleRules((RequiredRole("Logger", 2, ("*",)),), 7, 5_000, 3_600_000, 3)
    assert settle_rules(Settings()) == SettleRules(shards=6)
