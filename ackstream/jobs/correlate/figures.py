"""What correlate counts of a batch for its operators: a request costs an entry in a list, the rest comes once a batch.

The numbers go to the driver with what each task sends it anyway: nothing is read again for them, neither the ledger nor
the state. A batch that Spark executes twice counts twice, unlike rows and replies.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ackstream.observe.catalogue import ACKS, DEAD_LETTERS, DECISION, REPLY, REQUESTS

if TYPE_CHECKING:
    from ackstream.observe.catalogue import Metric
    from ackstream.observe.figures import Tally
    from ackstream.protocol.ledger import OutcomeRow

NAME = "correlate"
_CLASSES = range(1, 6)


class RequestFigures:
    """The numbers of one shard in one batch.

    :ivar dispositions: of acknowledgements
    :ivar dead_letters: by the codes of their reasons
    """

    def __init__(self) -> None:
        self.dispositions: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self._decided: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def decided(self, outcome: OutcomeRow, accepted: int) -> None:
        """Count a decision, and the acknowledgements that it took into account."""
        times = (outcome.started_at, outcome.latency_ms)
        self._decided.setdefault((outcome.completed_by, outcome.status // 100), []).append(times)
        if accepted:
            self.dispositions["accepted"] += accepted

    def measure(self, tally: Tally, now_ms: int) -> None:
        """Add the numbers to those of other batches.

        :param now_ms: the time of this machine at the end of the batch, epoch milliseconds. A sender waits until then;
            the clocks of machine and broker may differ, so that no wait is less than none
        """
        for (completed_by, hundreds), times in self._decided.items():
            # a party may answer with any number
            tally.count(REQUESTS, completed_by, f"{hundreds}xx" if hundreds in _CLASSES else "other", by=len(times))
            started, latencies = np.array(times, np.int64).T
            _observe(tally, DECISION, completed_by, latencies)
            _observe(tally, REPLY, completed_by, np.maximum(now_ms - started, 0))
        for disposition, count in self.dispositions.items():
            tally.count(ACKS, disposition, by=count)
        for code, count in self.dead_letters.items():
            tally.count(DEAD_LETTERS, NAME, code, by=count)


def _observe(tally: Tally, metric: Metric, label: str, values_ms: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    seconds = values_ms / 1000
    places = np.searchsorted(np.array(metric.buckets), seconds)
    counts = np.bincount(places, minlength=len(metric.buckets) + 1)
    tally.observe_counts(metric, label, counts=counts.tolist(), total=float(seconds.sum()))
