"""The demo from start to summary, with its own Kafka, lake and checkpoints; other data stays untouched."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kafka.errors import KafkaError

from ackstream.cli.terminal import Interrupts
from ackstream.errors import AckstreamError, LocalError, UnreachableError
from ackstream.gateway import exchange as gateway
from ackstream.jobs.archive import job as archive
from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job as twin
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.parties import OPERATOR
from ackstream.local.broker import Broker
from ackstream.local.machine import locked, shared_with_tests
from ackstream.local.secured import SecuredBroker
from ackstream.settings import Kafka, Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ackstream.settings import Settings

TOPICS = tuple(dict.fromkeys((*correlate.JOB.topics, *twin.JOB.topics, *archive.JOB.topics, *gateway.TOPICS)))


def demo(settings: Settings, console: Console, number: int, rate: float, *, secure: bool = False) -> bool:
    """Run the demo, ``rate`` commands per second; return whether all counts add up. Ctrl-C leaves nothing running."""
    with Interrupts() as interrupts:
        try:
            with ExitStack() as stack:
                try:
                    own = stack.enter_context(environment(settings, console, secure=secure))
                    run = shared_with_tests("demo/course.py").run
                    return bool(run(own, console, number, rate, interrupts, stack))
                finally:
                    interrupts.ignore()
        except Exception as error:  # noqa: BLE001 - re-raised
            # errors during an interrupted shutdown carry no information
            if interrupts.seen:
                raise KeyboardInterrupt from None
            raise _reason(error) from None


def _reason(error: BaseException) -> BaseException:
    """Return the first product error in the chain of causes, else the error itself."""
    found, step = error, error.__context__
    while step is not None:
        found = step if isinstance(step, AckstreamError) else found
        step = step.__context__
    return found


@contextmanager
def environment(settings: Settings, console: Console, *, secure: bool = False) -> Iterator[Settings]:
    """Provide Kafka and empty directories for a block, and yield their settings; LocalError has the remedy.

    A Kafka started by ``ackstream up`` is reused, with separate topics that are deleted afterwards: these settings have
    a topic prefix. Otherwise one is started and stopped again. The lake is kept.

    :param secure: start one with TLS, and a login and ACLs for each party; the settings have the operator's login
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
        if borrowed:
            stack.callback(_delete_topics, own)
        else:
            # an interruption of the start leaves nothing running
            stack.callback(broker.stop)
            broker.start(console)
        own = broker.as_user(own, OPERATOR)
        topics.ensure_topics(own, TOPICS)
        broker.admit(own)
        yield own


def demo_settings(settings: Settings, home: Path, topic_prefix: str) -> Settings:
    """Return settings that keep all data below ``home`` and use the local Kafka."""
    bootstrap, partitions = f"localhost:{settings.local.port}", settings.kafka.partitions
    return settings.model_copy(
        update={
            "kafka": Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix, partitions=partitions),
            "local": settings.local.model_copy(update={"data": home}),
            "lake": Lake(path=str(home / "lake"), checkpoints=str(home / "checkpoints")),
            # an archive batch keeps a core busy for seconds, and here it shares two cores with correlate
            "archive": settings.archive.model_copy(update={"trigger": 10_000}),
        }
    )


def _delete_topics(settings: Settings) -> None:
    # the broker may be gone, and the topics with it
    with suppress(KafkaError, UnreachableError), connect_admin(settings.kafka) as client:
        client.delete_topics([settings.kafka.topic(name) for name in TOPICS])
