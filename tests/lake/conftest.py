"""What the tests of the tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.settings import Lake

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return settings of tables that no other test has."""
    return Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
