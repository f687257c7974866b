"""Where the demo runs: a Kafka, a lake and checkpoints of its own, fresh each time; nobody else's data is touched."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ackstream.errors import LocalError
from ackstream.gateway import service as gateway
from ackstream.gateway.service import Server, connected
from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job as twin
from ackstream.kafka import topics
from ackstream.local import process
from ackstream.local.broker import Broker
from ackstream.settings import Clock, Gateway, Kafka, Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ackstream.settings import Settings


TOPICS = tuple(dict.fromkeys((*correlate.TOPICS, *twin.TOPICS, *gateway.TOPICS)))


@dataclass(frozen=True)
class Environment:
    """The settings of the demo, and whether its Kafka was running before."""

    settings: Settings
    borrowed: bool


@contextmanager
def environment(settings: Settings, console: Console) -> Iterator[Environment]:
    """Provide Kafka and empty directories for the time of the block.

    A Kafka that ``ackstream up`` started is used, with topics of the demo's own that are deleted afterwards; otherwise
    one is started, and stopped afterwards. The lake stays.

    :raises LocalError: no Java, no jars, a port in use, another demo; with the remedy
    """
    home = settings.local.data / "demo"
    with ExitStack() as stack:
        stack.enter_context(_alone(home))
        borrowed = Broker(settings).status().answers
        own = demo_settings(settings, home, f"demo-{int(time.time())}-" if borrowed else "")
        broker = Broker(own)
        # of a demo that was killed
        broker.stop()
        for path in (home / "kafka" / "data", Path(own.lake.path), Path(own.lake.checkpoints)):
            shutil.rmtree(path, ignore_errors=True)
        if not borrowed:
            broker.start(console)
            stack.callback(broker.stop)
        else:
            stack.callback(_delete_topics, own)
        topics.ensure_topics(own, TOPICS)
        yield Environment(own, borrowed)


def demo_settings(settings: Settings, home: Path, topic_prefix: str) -> Settings:
    """Return the settings with everything of one's own below ``home``, and this machine's Kafka."""
    kafka = Kafka(
        bootstrap=f"localhost:{settings.local.port}", topic_prefix=topic_prefix, partitions=settings.kafka.partitions
    )
    return settings.model_copy(
        update={
            "kafka": kafka,
            "local": settings.local.model_copy(update={"data": home}),
            "lake": Lake(path=str(home / "lake"), checkpoints=str(home / "checkpoints")),
            "clock": Clock(),
            # each round of the archive keeps a core busy for seconds, and here it shares two with correlate
            "archive": settings.archive.model_copy(update={"trigger": "10 seconds"}),
        }
    )


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = (home / "lock").open("w")
    except OSError as error:
        raise LocalError(
            f"The directory {home} cannot be written ({error.strerror}): set local.data (ACKSTREAM_LOCAL_DATA) to one "
            f"that can."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(
                f"A demo is running already in {home}: wait for it, or set local.data (ACKSTREAM_LOCAL_DATA) and "
                f"local.port (ACKSTREAM_LOCAL_PORT) to others."
            ) from None
        yield


def _delete_topics(settings: Settings) -> None:
    try:
        with topics.admin(settings) as client:
            client.delete_topics([settings.kafka.topic(name) for name in TOPICS])
    except (KafkaError, LocalError):
        # it went away: then its owner has other things to do
        return


# -- The gateway beside the demo: a thread with its event loop, and a line to try it with.


@contextmanager
def serve_gateway(settings: Settings) -> Iterator[str]:
    """Serve for the time of the block; the value is the address. A taken port is replaced by a free one.

    :raises LocalError: it cannot listen
    """
    # whoever runs a demo is not asked for a password: the address is this machine's alone
    port = settings.gateway.port
    own = settings.model_copy(update={"gateway": Gateway(port=port if process.is_free(port) else 0)})
    address: Future[str] = Future()
    with connected(own) as dependencies:
        server = Server(dependencies, address.set_result)
        thread = threading.Thread(target=_serve, args=(server, address), name="ackstream-gateway", daemon=True)
        thread.start()
        try:
            yield address.result()
        finally:
            server.should_exit = True
            thread.join()


def curl(address: str, thing_id: str, labels: tuple[str, ...]) -> str:
    """Return a shell line that sends a command over HTTP and prints the aggregate."""
    asked = ",".join(("twin-persisted", *labels))
    url = f"{address}/api/2/things/{thing_id}/attributes/speed?timeout=10s&requested-acks={asked}"
    return f"curl -X PUT '{url}' -H 'content-type: application/json' -d 42"


def _serve(server: Server, address: Future[str]) -> None:
    try:
        asyncio.run(server.serve())
    except SystemExit:
        # uvicorn ends a program that cannot listen
        address.set_exception(LocalError("The gateway cannot listen at any port of this machine."))
