from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.lake import search, tables
from ackstream.lake.schemas import TWIN_TABLES
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Lake


def test_every_value_of_a_thing_has_its_path() -> None:
    thing = {
        "thingId": "a:b",
        "attributes": {"a/b~c": 1, "empty": {}, "list": [1, [2, "x"], {"y": None}, []], "on": True},
    }
    assert list(search.flatten(thing)) == [
        ("thingId", "a:b"),
        ("attributes/a~1b~0c", 1),
        ("attributes/empty", {}),
        ("attributes/list", 1),
        ("attributes/list", 2),
        ("attributes/list", "x"),
        ("attributes/list/y", None),
        ("attributes/list", []),
        ("attributes/on", True),
    ]


def test_the_values_of_a_path_are_counted_and_typed() -> None:
    found = list(search.rows("a:b", '{"n":[1,"x",false,2.5,null]}'))
    assert found == [
        ("a:b", "n", 0, None, 1.0, None, "1"),
        ("a:b", "n", 1, "x", None, None, '"x"'),
        ("a:b", "n", 2, None, None, False, "false"),
        ("a:b", "n", 3, None, 2.5, None, "2.5"),
        ("a:b", "n", 4, None, None, None, "null"),
    ]


def test_the_index_follows_things_that_change_and_go(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, TWIN_TABLES)

    def index(*rows: dict[str, object]) -> set[tuple[str, str, str]]:
        frame = spark.createDataFrame(table(*rows)).selectExpr("*", "0L AS batch")
        # what is merged again changes nothing
        for _ in range(2):
            search.merge(spark, lake, frame)
        found = tables.read(spark, lake, "things_search").collect()
        assert len(found) == len({(row.thing_id, row.path, row.element) for row in found})
        return {(row.thing_id, row.path, row.value) for row in found if row.path != "thingId"}

    first = index(change("a:1", 1, {"n": [1, 2], "m": "x"}), change("a:2", 1, {"n": 1}))
    assert first == {("a:1", "n", "1"), ("a:1", "n", "2"), ("a:1", "m", '"x"'), ("a:2", "n", "1")}
    second = index(change("a:1", 2), change("a:1", 3, {"n": [3]}), change("a:2", 2, deleted=True))
    assert second == {("a:1", "n", "3")}
    version = spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(lake, 'things_search')}`").count()
    assert index(change("a:1", 4, {"n": [3]}, visible=False)) == second
    assert spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(lake, 'things_search')}`").count() == version
