"""Reading a topic for as long as a client lives, whatever the broker does and whatever stands in the topic."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

if TYPE_CHECKING:
    import threading

log = logging.getLogger(__name__)

POLL_MS = 100
BACKOFF_SECONDS = 0.5
MAX_RECORDS = 2_000


class TopicReader:
    """Polls a consumer. An error of the broker is waited out; a record that cannot be unpacked is stepped over.

    Such a record (a header name that is not UTF-8, a wrong checksum, a compression this Python lacks) makes the
    library raise once, and the next poll would then never return.
    """

    def __init__(self, consumer: Any, stop: threading.Event) -> None:
        """Read with ``consumer``; ``stop`` ends a wait for the broker."""
        self.consumer = consumer
        self.unreadable = 0
        self._stop = stop
        self._last_skipped: tuple[Any, int] | None = None

    def read(self, timeout_ms: int = POLL_MS, max_records: int = MAX_RECORDS) -> list[Any]:
        """Return the records that came within the time, none after an error; never raises for what Kafka does."""
        self._go_on_joining()
        self._go_on_after_pause()
        try:
            batches = self.consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
        except Exception as error:  # noqa: BLE001 - unpacking a foreign record may raise anything
            if not self._step_over(error):
                log.warning("Reading from Kafka failed and is tried again: %s", error)
                self._stop.wait(BACKOFF_SECONDS)
            return []
        return [record for records in batches.values() for record in records]

    def _go_on_joining(self) -> None:
        """Have a rebalance that is not finished looked after by the next poll.

        The library forgets one that the leader of a group began because the partitions had changed, where a poll ends
        between the assignment and its confirmation: the member then has no heartbeat and commits nothing any more. A
        poll without a timeout would never see the confirmation.
        """
        coordinator = self.consumer._coordinator  # noqa: SLF001 - there is no public way
        if coordinator.rebalance_in_progress():
            coordinator.request_rejoin()

    def _go_on_after_pause(self) -> None:
        """Have what was fetched of a partition before it was paused be read once it is resumed.

        The library puts it into the place of the records at hand, but takes that for occupied as long as records stand
        there that are all read: with several partitions a resumed one might then never be read again.
        """
        fetcher = self.consumer._fetcher  # noqa: SLF001 - there is no public way
        if not fetcher._next_partition_records:  # noqa: SLF001
            fetcher._next_partition_records = None  # noqa: SLF001

    def _step_over(self, error: Exception) -> bool:
        """Go to the next offset where it was a record that failed."""
        # the library does not tell which record it was, and a failed partition stays in line
        part = self.consumer._fetcher._next_partition_records  # noqa: SLF001 - there is no public way
        if not part:
            return False
        # unpacking begins with the batch, which may begin before the offset that was asked for
        place, offset = part.topic_partition, max(part.fetch_offset, part.next_fetch_offset)
        try:
            self.consumer.seek(place, offset + 1)
        except (KafkaError, AssertionError):
            # no longer assigned; the library drops its records itself
            return False
        # the rest of the same batch fails likewise, which need not be said again
        if self._last_skipped != (place, offset - 1):
            log.error("A record that cannot be read is left out (%s, offset %s): %s", place, offset, error)
        self._last_skipped = (place, offset)
        self.unreadable += 1
        return True
