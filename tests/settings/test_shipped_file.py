"""The settings file that is shipped: every key, with its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackstream.settings import Destination, Quota, RouteSettings, Settings, load
from ackstream.settings.base import Part, parse_toml
from ackstream.settings.gateway import Issuer
from ackstream.settings.jobs import QueueSettings

SHIPPED = Path(__file__).parents[2] / "conf" / "ackstream.toml"
TEXT = SHIPPED.read_text("utf-8")
VALUES: dict[str, Any] = parse_toml(TEXT)
EXAMPLES: dict[str, Any] = parse_toml("\n".join(re.findall(r"^# (\[\[.*|[a-z_]+ = .*)$", TEXT, flags=re.MULTILINE)))
"""The commented tables, of which there may be any number."""

SECTIONS = [part for part, field in Settings.model_fields.items() if isinstance(field.default, Part)]


def _sections(part: Part, values: dict[str, Any]) -> Iterator[tuple[type[Part], dict[str, Any]]]:
    yield type(part), values
    for key in type(part).model_fields:
        inner = getattr(part, key)
        if isinstance(inner, Part):
            yield from _sections(inner, values.get(key, {}))


@pytest.mark.parametrize("part", SECTIONS)
def test_a_section_and_those_in_it_show_every_key_with_its_default(part: str) -> None:
    for model, values in _sections(Settings.model_fields[part].default, VALUES[part]):
        assert values.keys() == model.model_fields.keys()
        for key, value in values.items():
            assert getattr(model(**{key: value}), key) == getattr(model(), key), key


def test_nothing_else_is_set() -> None:
    assert VALUES.keys() == set(SECTIONS)
    assert load(SHIPPED, {}) == Settings()


@pytest.mark.parametrize(
    ("table", "model"), [("queues", QueueSettings), ("destinations", Destination), ("routes", RouteSettings)]
)
def test_a_commented_table_shows_every_key_with_its_default_where_it_has_one(table: str, model: type[Part]) -> None:
    (example,) = EXAMPLES[table]
    assert example.keys() == model.model_fields.keys()
    shown = model(**example)
    plain = model(**{key: example[key] for key, field in model.model_fields.items() if field.is_required()})
    for key in example.keys() - {"name", "path", "topics", "type"}:
        # what is left out by default, such as a duration without a limit, has no spelling: an example stands there
        assert getattr(plain, key) in (getattr(shown, key), None, 0), key


def test_the_commented_quota_shows_every_key_and_says_that_0_is_no_limit() -> None:
    (example,) = EXAMPLES["quotas"]
    assert example.keys() == Quota.model_fields.keys()
    limits = [key for key in example if key.startswith("max_")]
    assert [Quota.model_fields[key].default for key in limits] == [0] * len(limits)
    assert all(re.search(rf"^# {key} = .*0: no limit$", TEXT, flags=re.MULTILINE) for key in limits)


def test_the_commented_tables_can_be_used_as_they_are() -> None:
    assert EXAMPLES.keys() | SECTIONS == Settings.model_fields.keys()
    assert EXAMPLES["gateway"]["issuers"][0].keys() == Issuer.model_fields.keys()
    settings = Settings.model_validate(EXAMPLES)
    assert all(len(getattr(settings, table)) == 1 for table in EXAMPLES.keys() - SECTIONS)
