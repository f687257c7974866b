"""An S3-compatible store in a process of its own, and what Spark and delta-rs have to know to use it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx

from ackstream.local import jars
from ackstream.settings import Lake
from tests.harness.ports import free_ports
from tests.harness.processes import LoggedProcess
from tests.harness.waiting import eventually

PYTHON = Path(sys.prefix, "store", "bin", "python")
"""The environment of moto, an S3-compatible store: it needs a python-dateutil that others here do not take."""

BUCKET, REGION = "ackstream", "us-east-1"
KEY, SECRET = "operator", "hunter2"
"""The store accepts any, but its clients need some."""

ANSWER_SECONDS = 5


def hadoop_entries(url: str) -> dict[str, str]:
    """Return the entries of Spark for a store at a URL, without its jars."""
    return {
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": str(url.startswith("https:")).lower(),
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }


def reading_options(url: str) -> dict[str, str]:
    """Return the same in the words of delta-rs: ``lake.storage_options``."""
    return {
        "aws_endpoint_url": url,
        "aws_region": REGION,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_allow_http": str(url.startswith("http:")).lower(),
        "aws_virtual_hosted_style_request": "false",
    }


class ObjectStore:
    """A bucket, and the settings of a system whose tables and checkpoints are in it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Start the store and make the bucket; ``stack`` ends it."""
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        if not PYTHON.exists():
            raise AssertionError(f"{PYTHON} is missing, which has the object store: `make test-cluster` installs it")
        command = [str(PYTHON), "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
        self._server = LoggedProcess("store", command, dict(os.environ), directory)
        stack.callback(self._server.kill)
        eventually(self._made, "the object store")

    def _made(self) -> bool:
        self._server.check()
        try:
            return httpx.put(f"{self.url}/{BUCKET}", timeout=ANSWER_SECONDS).is_success
        except httpx.TransportError:
            return False

    def lake(self) -> Lake:
        """Return the settings of its tables and checkpoints."""
        place = f"s3a://{BUCKET}"
        options = reading_options(self.url)
        return Lake(path=f"{place}/lake", checkpoints=f"{place}/checkpoints", storage_options=options)

    def entries(self) -> dict[str, str]:
        """Return what ``[spark.conf]`` needs, with Hadoop's client of S3."""
        fetched = jars.resolve("s3a", module=Path(__file__).with_name("ivy.xml"))
        return {**hadoop_entries(self.url), "spark.jars": ",".join(map(os.fspath, fetched))}
