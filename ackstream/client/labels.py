"""The labels of one client, kept as long as it lives."""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

from ackstream.client.declarer import Declaration, Declarer
from ackstream.client.errors import UnreachableError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextlib import ExitStack

    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

DECLARE_SECONDS = 15.0
AGAIN_SECONDS = 5.0


class Labels:
    """The labels of one subscriber; where they are lost, they are declared again."""

    def __init__(self, stack: ExitStack, kafka: Kafka, wanted: frozenset[str], group: str | None) -> None:
        """Declare them.

        :param stack: closes what was opened here
        :raises DittoError: 409, somebody else has them
        """
        self._wanted = wanted
        self._group = group
        self._declarer = stack.enter_context(Declarer(kafka)) if wanted else None
        self._declared: Future[Declaration] | None = None
        self._again_at = 0.0
        if self._declarer is not None:
            self._declared = self._declarer.declare(wanted, group=group)
            try:
                self._declared.result(DECLARE_SECONDS)
            except FutureTimeout:
                raise UnreachableError(
                    f"The broker at {kafka.bootstrap} did not take the declaration of labels within "
                    f"{DECLARE_SECONDS:g} s: look into its log."
                ) from None

    @property
    def held(self) -> frozenset[str]:
        """All of them, or none."""
        declared = self._declared
        if declared is None or not declared.done() or declared.exception() or not declared.result().held:
            return frozenset()
        return self._wanted

    def keep(self, now: float) -> None:
        """Declare them again where they were lost; to be called now and then."""
        if self._declarer is None or self._declared is None or not self._declared.done() or self.held:
            return
        if now >= self._again_at:
            self._again_at = now + AGAIN_SECONDS
            log.error("The labels %s are lost and declared again.", ", ".join(sorted(self._wanted)))
            self._declared = self._declarer.declare(self._wanted, group=self._group)
