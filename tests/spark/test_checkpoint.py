from __future__ import annotations

import pytest

from ackstream.errors import StartError
from ackstream.spark.checkpoint import compare


def test_other_values_are_refused_with_the_key_both_values_and_the_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        compare({"x.shards": 6, "x.store": "hdfs"}, {"x.shards": 6, "x.store": "rocksdb"}, "/c/x", "begin anew")
    assert str(refused.value) == (
        "The checkpoint /c/x was made with x.store = rocksdb, the settings say hdfs. Set x.store back to that, "
        "or begin anew."
    )


@pytest.mark.parametrize("theirs", [{"x.shards": 6}, {}, {"x.shards": 6, "x.gone": 1}])
def test_the_same_values_pass_and_so_do_those_that_an_older_release_did_not_write(theirs: dict[str, object]) -> None:
    compare({"x.shards": 6}, theirs, "/c/x", "begin anew")
