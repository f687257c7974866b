"""Examples of requesters and receivers, as they stand in the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness import pages
from tests.harness.counterpart import Counterpart

pytestmark = pytest.mark.integration

TOPICS = ("signals", "acks", "replies", "events", "declarations")
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in ("README.md", "docs/subscribers.md", "docs/send-a-command.md")
    for number, example in enumerate(pages.examples(page))
    if any(f"{client}(" in example for client in ("Requester", "Responder", "Subscriber"))
]


def test_the_pages_have_an_example_of_each() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str) -> None:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Counterpart(kafka):
        pages.run(example, Settings(kafka=kafka), tmp_path, monkeypatch)
