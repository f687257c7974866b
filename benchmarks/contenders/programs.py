"""How each contender is started as programs of its own: the same topics in, the same topic out, a directory for state.

Each reads ``signals`` and ``acks``, writes to ``replies`` with the correlation-id as the key and the cause of
completion in the record header ``completed-by``, and started again with the same place it goes on where it was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.local import jars, machine
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.settings import Settings

HERE = Path(__file__).parent
MODULE = HERE / "ivy.xml"
JAVA_OPTIONS = ("-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"


@dataclass(frozen=True)
class Place:
    """The input of a run of a contender.

    :param settings: broker and topics
    :param name: of its consumer group; another for each run
    :param directory: for its state; empty at first
    :param classes: where compiled programs are kept
    """

    settings: Settings
    name: str
    directory: Path
    classes: Path


@dataclass(frozen=True)
class Contender:
    """One of those that are compared.

    :param commands: of all its processes
    :param heartbeats: whether it needs records with a time in each partition, since it has no clock of its own
    :param standby: the commands of standbys, which replace it when it is killed; ``None``: it starts again
    """

    name: str
    commands: Callable[[Place], list[list[str]]]
    heartbeats: bool = True
    standby: Callable[[Place], list[list[str]]] | None = None


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment in which ackstream has these settings; to the others it means nothing."""
    return {
        **os.environ,
        "ACKSTREAM_KAFKA_BOOTSTRAP": settings.kafka.bootstrap,
        "ACKSTREAM_KAFKA_TOPIC_PREFIX": settings.kafka.topic_prefix,
        "ACKSTREAM_LAKE_PATH": settings.lake.path,
        "ACKSTREAM_LAKE_CHECKPOINTS": settings.lake.checkpoints,
        "ACKSTREAM_LOCAL_DATA": str(settings.local.data),
        # a driver that is killed leaves its files there
        "SPARK_LOCAL_DIRS": str(settings.local.data),
    }


def _ackstream(*more: str) -> Callable[[Place], list[list[str]]]:
    return lambda _: [[sys.executable, "-c", "from ackstream.cli.main import app; app()", "submit", "correlate", *more]]


def _quix(processes: int, place: Place) -> list[list[str]]:
    kafka = place.settings.kafka
    return [
        [
            sys.executable, "-m", "benchmarks.contenders.quix", "--bootstrap", kafka.bootstrap,
            "--prefix", kafka.topic_prefix, "--group", place.name, "--number", str(number),
            "--state", str(place.directory / str(number)),
        ]
        for number in range(processes)
    ]  # fmt: skip


def _bytewax(processes: int, place: Place) -> list[list[str]]:
    kafka = place.settings.kafka
    addresses = [f"localhost:{port}" for port in free_ports(processes)] if processes > 1 else []
    return [
        [
            sys.executable, "-m", "benchmarks.contenders.bytewax", "--bootstrap", kafka.bootstrap,
            "--prefix", kafka.topic_prefix, "--number", str(number), "--state", str(place.directory),
            *(["--addresses", *addresses] if addresses else []),
        ]
        for number in range(processes)
    ]  # fmt: skip


def _kafka_streams(guarantee: str, place: Place) -> list[list[str]]:
    kafka = place.settings.kafka
    more = kafka.bootstrap, kafka.topic_prefix, place.name, str(place.directory), guarantee
    return [_java("kafka-streams", "KafkaStreamsJoin", place.classes, *more)]


def _flink(place: Place) -> list[list[str]]:
    kafka = place.settings.kafka
    more = kafka.bootstrap, kafka.topic_prefix, place.name, str(place.directory)
    return [_java("flink", "FlinkJoin", place.classes, *more)]


def _java(configuration: str, program: str, classes: Path, *arguments: str) -> list[str]:
    java, own = str(machine.find_java().program), classes / configuration
    libraries = os.pathsep.join(map(str, jars.resolve(configuration, module=MODULE)))
    if not own.exists():
        (compiler,) = jars.resolve("compiler", module=MODULE)
        sources = [str(HERE / "java" / f"{name}.java") for name in ("Join", program)]
        subprocess.run(
            [java, "-Xmx256m", "-jar", str(compiler), "-17", "-nowarn", "-cp", libraries, "-d", str(own), *sources],
            check=True,
        )
    return [java, *JAVA_OPTIONS, "-cp", os.pathsep.join([str(own), libraries]), program, *arguments]


def versions() -> dict[str, str]:
    """Return the versions of the contenders that no other benchmark uses."""
    wanted = {"kafka-streams": "kafka-streams", "flink": "flink-clients"}
    found = {"bytewax": version("bytewax")} if find_spec("bytewax") else {}
    for configuration, name in wanted.items():
        for jar in jars.resolve(configuration, module=MODULE):
            if jar.stem.rpartition("-")[0] == name:
                found[configuration] = jar.stem.rpartition("-")[2]
    return found


STANDBY = Contender("ackstream with a standby", _ackstream(), heartbeats=False, standby=_ackstream("--standby"))
"""The same program, so that it is only killed."""
CONTENDERS = (
    Contender("ackstream", _ackstream(), heartbeats=False),
    Contender("quixstreams, 1 process", partial(_quix, 1)),
    Contender("quixstreams, 2 processes", partial(_quix, 2)),
    # it has no wheels for the newest Python
    *(
        [
            Contender("bytewax, 1 process", partial(_bytewax, 1)),
            Contender("bytewax, 2 processes", partial(_bytewax, 2)),
        ]
        if find_spec("bytewax")
        else []
    ),
    Contender("Kafka Streams, exactly once", partial(_kafka_streams, EXACTLY_ONCE)),
    Contender("Kafka Streams, at least once", partial(_kafka_streams, AT_LEAST_ONCE)),
    Contender("Flink", _flink),
)
