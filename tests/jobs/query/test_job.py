from __future__ import annotations

from ackstream.jobs.query.job import QueryRecord, newest_stored_batch
from ackstream.protocol import messages
from ackstream.protocol.messages import StoredRange


def _record(value: bytes | None, topic: str = "stored") -> QueryRecord:
    return QueryRecord(0, 0, 0, topic, b"p1", value, [])


def _stored(batch: int) -> bytes:
    return messages.write_stored(StoredRange("p1", 1, 2, batch))


def test_the_log_is_as_far_as_the_newest_word_of_persist() -> None:
    records = [_record(_stored(batch)) for batch in (4, 9, 5)]
    assert newest_stored_batch(records, "stored", 3) == 9
    assert newest_stored_batch(records, "stored", 12) == 12
    assert newest_stored_batch([_record(_stored(9), "queries")], "stored", 3) == 3


def test_what_is_no_word_of_persist_is_left_out() -> None:
    records = [_record(None), _record(b""), _record(b"no JSON"), _record(_stored(4)), _record(b'{"type":"stored"}')]
    assert newest_stored_batch(records, "stored", -1) == 4
