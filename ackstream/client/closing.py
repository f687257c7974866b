"""What is closed at the end of its ``with`` block."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Closing(AbstractContextManager):  # type: ignore[type-arg]  # __enter__ returns the object itself
    """Base of the clients: ``with Requester(…) as requester`` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Finish and disconnect; may be called twice."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
