"""The environment of the demo: its own Kafka, lake and checkpoints, fresh on each run; other data stays untouched."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kafka.errors import KafkaError

from ackstream.errors import LocalError, UnreachableError
from ackstream.gateway import dependencies as gateway
from ackstream.gateway.dependencies import connected
from ackstream.gateway.server import Server
from ackstream.jobs.archive import job as archive
from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job as twin
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.local.broker import Broker
from ackstream.local.process import is_free, locked
from ackstream.local.secured import SecuredBroker
from ackstream.settings import Gateway, Kafka, Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ackstream.settings import Settings


TOPICS = tuple(dict.fromkeys((*correlate.JOB.topics, *twin.JOB.topics, *archive.JOB.topics, *gateway.TOPICS)))


@contextmanager
def environment(settings: Settings, console: Console, *, secure: bool = False) -> Iterator[Settings]:
    """Provide Kafka and empty directories for the duration of the block; yield the settings that use them.

    A Kafka started by ``ackstream up`` is reused, with separate topics that are deleted afterwards: these settings have
    a topic prefix. Otherwise one is started and stopped again. The lake is kept.

    :param secure: start one with TLS, and a login and ACLs for each party; the settings have the operator's login
    :raises LocalError: no Java, no jars, a port in use, or another demo is running; names the remedy
    """
    home = settings.local.data / "demo"

    def refuse() -> NoReturn:
        raise LocalError(
            f"Another demo is running in {home}: wait for it to end, or set local.data (ACKSTREAM_LOCAL_DATA) and "
            f"local.port (ACKSTREAM_LOCAL_PORT) to other values."
        )

    with ExitStack() as stack:
        stack.enter_context(locked(home / "lock", "set local.data (ACKSTREAM_LOCAL_DATA) to one that can", refuse))
        borrowed = not secure and Broker(settings).answers()
        own = demo_settings(settings, home, f"demo-{int(time.time())}-" if borrowed else "")
        broker: Broker = SecuredBroker(own) if secure else Broker(own)
        # left over from a killed demo
        for left in (Broker(own), SecuredBroker(own)):
            left.stop()
        logins = home / SecuredBroker.HOME
        for path in (home / "kafka" / "data", logins, Path(own.lake.path), Path(own.lake.checkpoints)):
            shutil.rmtree(path, ignore_errors=True)
        if not borrowed:
            # an interruption of the start leaves nothing running
            stack.callback(broker.stop)
            broker.start(console)
        else:
            stack.callback(_delete_topics, own)
        if isinstance(broker, SecuredBroker):
            own = broker.as_operator(own)
        topics.ensure_topics(own, TOPICS)
        if isinstance(broker, SecuredBroker):
            broker.admit(own)
        yield own


def as_party(settings: Settings, party: str) -> Settings:
    """Return the settings of one party of the demo, with a login of its own where there are logins."""
    secured = settings.kafka.security.logs_in
    return SecuredBroker(settings).as_user(settings, party) if secured else settings


def demo_settings(settings: Settings, home: Path, topic_prefix: str) -> Settings:
    """Return settings that keep all data below ``home`` and use the local Kafka."""
    kafka = Kafka(
        bootstrap=f"localhost:{settings.local.port}", topic_prefix=topic_prefix, partitions=settings.kafka.partitions
    )
    return settings.model_copy(
        update={
            "kafka": kafka,
            "local": settings.local.model_copy(update={"data": home}),
            "lake": Lake(path=str(home / "lake"), checkpoints=str(home / "checkpoints")),
            # an archive batch keeps a core busy for seconds, and here it shares two cores with correlate
            "archive": settings.archive.model_copy(update={"trigger": 10_000}),
        }
    )


def _delete_topics(settings: Settings) -> None:
    try:
        with connect_admin(settings.kafka) as client:
            client.delete_topics([settings.kafka.topic(name) for name in TOPICS])
    except (KafkaError, UnreachableError):
        # the broker is gone, and the topics with it
        return


@contextmanager
def serve_gateway(settings: Settings) -> Iterator[str]:
    """Serve the gateway for the duration of the block and yield its address.

    If the configured port is in use, a free one is taken.

    :raises LocalError: no port can be bound
    """
    # no password: the gateway listens on the loopback address only
    port = settings.gateway.port
    own = settings.model_copy(update={"gateway": Gateway(port=port if is_free(port) else 0)})
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


def _serve(server: Server, address: Future[str]) -> None:
    try:
        asyncio.run(server.serve())
    except SystemExit:
        # uvicorn exits when it cannot listen
        address.set_exception(LocalError("The gateway cannot listen on any port of this machine."))
