from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import labels
from ackstream.client.labels import REDECLARE_SECONDS, Declaration, Labels
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.errors import label_not_unique
from ackstream.protocol.errors import DittoError
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

WANTED = frozenset({"a-a"})


class Declarer(Closing):
    """Answers what the test says: ``None`` is silence."""

    answers: list[Any]

    def __init__(self, _kafka: Kafka) -> None:
        """There is nothing to connect to."""

    def declare(self, wanted: frozenset[str], *, group: str | None) -> Declaration:
        answer, declaration = self.answers.pop(0), Declaration(wanted, group)
        if isinstance(answer, Exception):
            declaration.future.set_exception(answer)
        elif answer is not None:
            declaration.held = True
            declaration.future.set_result(None)
        return declaration

    def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(labels, "Declarer", Declarer)
    monkeypatch.setattr(labels, "DECLARE_SECONDS", 0.01)
    with ExitStack() as found:
        yield found


def declared(stack: ExitStack, *answers: Any) -> Labels:
    Declarer.answers = list(answers)
    return Labels(stack, Kafka(), WANTED, "g")


def test_labels_are_held_from_the_start_or_not_at_all(stack: ExitStack):
    assert declared(stack, "yes").held == WANTED
    with pytest.raises(DittoError):
        declared(stack, label_not_unique())
    with pytest.raises(UnreachableError, match="did not store the declaration"):
        declared(stack, None)


def test_without_labels_nothing_is_declared(stack: ExitStack):
    found = Labels(stack, Kafka(), frozenset(), None)
    found.keep(0.0)
    assert found.held == frozenset()


def test_lost_labels_are_declared_again_and_again_until_they_are_held(stack: ExitStack):
    found = declared(stack, "yes", label_not_unique(), "yes")
    declaration = found._declared
    found.keep(100.0)
    assert found._declared is declaration
    declaration.held = False
    found.keep(100.0)
    assert found.held == frozenset()
    found.keep(100.0 + REDECLARE_SECONDS - 0.1)
    assert len(Declarer.answers) == 1
    found.keep(100.0 + REDECLARE_SECONDS)
    assert found.held == WANTED
