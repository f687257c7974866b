"""What the tests on a cluster of Spark's own kind rest on: what they read of it, and what they tell of the store."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackstream.local import machine
from ackstream.settings import Lake
from tests.harness import object_store
from tests.harness.lake import count, rows
from tests.harness.standalone import Overview, executors

LISTING = """\
    1 /sbin/init
  812 /usr/bin/java -cp /jars/* -Xmx192m org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --port 7101
  900 /usr/bin/java -Xmx512M org.apache.spark.executor.CoarseGrainedExecutorBackend --driver-url \
spark://CoarseGrainedScheduler@127.0.0.1:4040 --executor-id 0 --hostname 127.0.0.1 --cores 1 --app-id app-1-0000 \
--worker-url spark://Worker@127.0.0.1:7101 --resourceProfileId 0
 1901 /usr/bin/java -Xmx512M org.apache.spark.executor.CoarseGrainedExecutorBackend --driver-url \
spark://CoarseGrainedScheduler@127.0.0.1:4040 --executor-id 1 --hostname 127.0.0.1 --cores 1 --app-id app-1-0000 \
--worker-url spark://Worker@127.0.0.1:7102 --resourceProfileId 0
 1902 /usr/bin/python -m pyspark.daemon pyspark.worker
 1903 grep CoarseGrainedExecutorBackend
"""


@pytest.mark.parametrize(("port", "found"), [(7101, [900]), (7102, [1901]), (7103, [])])
def test_the_executors_of_a_worker_are_those_that_name_it(port: int, found: list[int]) -> None:
    assert executors(LISTING, port) == found


def test_workers_that_have_gone_use_nothing() -> None:
    workers = [
        {"id": "a", "port": 7101, "cores": 2, "coresused": 1, "state": "ALIVE"},
        {"id": "b", "port": 7102, "cores": 2, "coresused": 0, "state": "ALIVE"},
        {"id": "c", "port": 7103, "cores": 2, "coresused": 2, "state": "DEAD"},
    ]
    shown = {"url": "spark://127.0.0.1:7100", "workers": workers, "activeapps": [{"id": "app-1", "name": "correlate"}]}
    assert Overview.of(shown) == Overview({7101: 1, 7102: 0}, ("correlate",))


def test_the_client_of_s3_is_that_of_sparks_hadoop() -> None:
    dependencies = ET.parse(Path(object_store.__file__).with_name("ivy.xml")).iter("dependency")
    (version,) = [one.get("rev") for one in dependencies if one.get("name") == "hadoop-aws"]
    (jar,) = machine.spark_home().glob("jars/hadoop-client-api-*.jar")
    assert re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", jar.name)[1] == version  # type: ignore[index]


def test_spark_and_delta_rs_are_told_the_same_of_the_store() -> None:
    url = "http://127.0.0.1:5000"
    hadoop, reading = object_store.hadoop_entries(url), object_store.reading_options(url)
    assert hadoop["spark.hadoop.fs.s3a.endpoint"] == reading["aws_endpoint_url"] == url
    assert hadoop["spark.hadoop.fs.s3a.access.key"] == reading["aws_access_key_id"]
    assert hadoop["spark.hadoop.fs.s3a.secret.key"] == reading["aws_secret_access_key"]
    # one address for all buckets, without TLS: a store on loopback
    assert (hadoop["spark.hadoop.fs.s3a.path.style.access"], reading["aws_virtual_hosted_style_request"]) == (
        "true", "false",
    )  # fmt: skip
    assert (hadoop["spark.hadoop.fs.s3a.connection.ssl.enabled"], reading["aws_allow_http"]) == ("false", "true")
    assert Lake(storage_options=reading).storage_options == reading


@pytest.mark.cluster
def test_tables_in_the_store_are_read_as_those_on_disk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        lake = object_store.ObjectStore(tmp_path, stack).lake()
        assert (rows(lake, "outcomes"), count(lake, "outcomes")) == ([], 0)
        written = pa.table({"correlation_id": ["c-1", "c-2"]})
        write_deltalake(lake.table("outcomes"), written, storage_options=lake.storage_options)
        assert rows(lake, "outcomes", "correlation_id") == written.to_pylist()
        assert count(lake, "outcomes") == 2
