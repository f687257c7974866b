from __future__ import annotations

import pyarrow as pa

from ackstream.delivery.settle.operator import IGNORED, MESSAGE, MESSAGE_FIELDS
from ackstream.delivery.settle.query import _of


def test_what_goes_to_spark_is_one_piece_whatever_it_was_chosen_from() -> None:
    batch = pa.table({"kind": [MESSAGE, IGNORED, MESSAGE], "key": ["a", "b", "c"], "value": [b"1", b"2", b"3"]})
    found = _of(pa.concat_tables([batch] * 3), MESSAGE, MESSAGE_FIELDS)
    assert found.column("key").to_pylist() == ["a", "c"] * 3
    assert {column.num_chunks for column in found.columns} == {1}
