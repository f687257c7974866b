from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from ackstream.lake.filters import fits
from ackstream.protocol.errors import DittoError
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# the things of the tests are of that second
NOW = datetime.fromtimestamp(1_700_000_001, timezone.utc)


def test_a_filter_is_a_condition_on_the_table_of_things(spark: SparkSession) -> None:
    rows = [change("a:1", 1, {"attributes": {"n": 1}}), change("a:2", 2, {"attributes": {"n": [5, 7]}})]
    things = spark.createDataFrame(table(*rows, change("a:3", 3, deleted=True))).repartition(2)
    found = {
        filter_: sorted(row.thing_id for row in things.where(fits(filter_, NOW)).collect())
        for filter_ in ("eq(attributes/n,7)", 'ne(thingId,"a:2")', "eq(_revision,1)", "gt(_modified,time:now-1m)")
    }
    assert list(found.values()) == [["a:2"], ["a:1"], ["a:1"], ["a:1", "a:2"]]


def test_what_is_no_filter_is_refused_before_anything_is_read() -> None:
    with pytest.raises(DittoError, match="Unknown property name"):
        fits("eq(nonsense,1)", NOW)
