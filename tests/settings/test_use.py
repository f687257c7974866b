"""Every setting reaches what it is for: nothing is declared that nobody reads, and another value makes a difference."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import ackstream
from ackstream.gateway.page import live as live_page
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.queues import job as queues
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import index_conf
from ackstream.settings import Settings, load
from ackstream.settings.base import Part
from ackstream.spark.operator import SHUFFLE_PARTITIONS
from tests.gateway.parts import Web, response

PACKAGE = Path(ackstream.__file__).parent
READERS = "\n".join(
    path.read_text("utf-8")
    for path in [*PACKAGE.rglob("*.py"), PACKAGE.parent / "tests/demo/broker.py"]
    if path.parent.name != "settings" or path.name in {"jobs.py", "loading.py"}
)
KEYS = [
    f"{part}.{key}"
    for part, field in Settings.model_fields.items()
    if isinstance(field.default, Part)
    for key in type(field.default).model_fields
]


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_read_somewhere(key: str) -> None:
    # as an attribute, or by its full key in a text
    assert re.search(rf"\.{key.partition('.')[2]}\b", READERS)


def _maximum(settings: Settings) -> str:
    """Return which of the timeouts of a claim is accepted at most."""
    web = Web(response(200, 1), max_claim_timeout=f"{settings.gateway.max_claim_timeout}ms")
    codes = {
        text: web("POST", "/things/a:b/inbox/claim", params={"timeout": text}).status_code for text in ("2s", "9s")
    }
    return " ".join(text for text, code in codes.items() if code == 200)


def _created(settings: Settings) -> str:
    web = Web(response(201, {"thingId": "x"}), default_namespace=settings.gateway.default_namespace)
    web("POST", "/things", json={})
    return web.sent.topic.thing_id.partition(":")[0]


def _page(settings: Settings) -> int:
    feed = mock.MagicMock(signed_at=lambda: None)
    with mock.patch.object(live_page, "LedgerFeed", return_value=feed), live_page.Live(settings) as live:
        return live.view().window


def _bytes_per_trigger(settings: Settings) -> Any:
    spark = mock.MagicMock()
    with mock.patch.object(queues, "F"), mock.patch.object(queues, "_start", return_value={}):
        queues._messages(spark, settings)
    return spark.readStream.format.return_value.option.call_args.args


@pytest.mark.parametrize(
    ("key", "value", "arrives", "as_"),
    [
        ("correlate.shuffle_partitions", 5, lambda found: CORRELATE.conf(found)[SHUFFLE_PARTITIONS], "5"),
        ("settle.shuffle_partitions", 5, lambda found: SETTLE.conf(found)[SHUFFLE_PARTITIONS], "5"),
        ("queue.shuffle_partitions", 5, lambda found: queues.JOB.conf(found)[SHUFFLE_PARTITIONS], "5"),
        ("queue.max_bytes_per_trigger", 7, _bytes_per_trigger, ("maxBytesPerTrigger", 7)),
        ("twin.index_partitions", 3, lambda found: index_conf(found)[SHUFFLE_PARTITIONS], "3"),
        ("gateway.max_claim_timeout", "5s", _maximum, "2s"),
        ("gateway.default_namespace", "org.acme", _created, "org.acme"),
        ("gateway.page_window", "7s", _page, 7_000),
    ],
)
def test_another_value_arrives(key: str, value: Any, arrives: Callable[[Settings], Any], as_: Any) -> None:
    name = f"ACKSTREAM_{key.replace('.', '_').upper()}"
    assert arrives(load(environment={name: str(value)})) == as_
    assert arrives(load(environment={})) != as_
