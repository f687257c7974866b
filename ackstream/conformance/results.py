"""What running a file of cases or scenarios comes to."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ackstream.errors import AckstreamError


class CaseFileError(AckstreamError):
    """A path is not there, or what is there are no cases."""


class Failure(msgspec.Struct, frozen=True):
    """A case that came out otherwise than expected."""

    id: str
    expected: dict[str, Any]
    actual: dict[str, Any]


class FileResult(msgspec.Struct):
    """What the cases of one file came to; ``not_run`` holds id and reason of those that nothing here can run."""

    name: str
    not_run_word: Literal["unknown", "uncovered"] = "unknown"
    passed: int = 0
    failed: list[Failure] = []
    not_run: list[tuple[str, str]] = []

    @property
    def ok(self) -> bool:
        """Tell whether all cases passed."""
        return not self.failed and not self.not_run
