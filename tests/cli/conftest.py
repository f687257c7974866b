from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.spark import session

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def none(*_: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(session, "quiet_session", none)
