"""Examples of pages, run as they stand: the broker and the settings that they name are those of the test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.settings import Kafka, Settings, loading

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent.parent
BROKERS = "localhost:9092"
"""What the examples name."""


def examples(page: str) -> list[str]:
    """Return the examples in Python of a page, in their order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def run(
    example: str, settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, Any] | None = None
) -> None:
    """Run an example in a directory; ``load()`` gives the settings, whose brokers stand for those of a laptop.

    :param names: what earlier examples have defined
    """
    real = Kafka.of

    def of(_kind: type[Kafka], bootstrap_servers: str | Kafka) -> Kafka:
        return settings.kafka if bootstrap_servers == BROKERS else real(bootstrap_servers)

    with monkeypatch.context() as changed:
        changed.setattr(Kafka, "of", classmethod(of))
        changed.setattr(loading, "load", lambda: settings)
        changed.chdir(folder)
        exec(compile(example, "docs", "exec"), {} if names is None else names)
