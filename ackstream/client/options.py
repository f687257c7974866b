"""The options of the clients: for each a frozen struct, whose fields are the keywords of its constructor.

The constructor documents them. Quality of service is apart: ``ReaderQos``, ``WriterQos`` and ``FlowQos`` stand with the
messages that they are about.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from ackstream.client.core.arguments import Retry
from ackstream.client.core.connection import Brokers
from ackstream.client.core.lifetime import ConnectionState
from ackstream.client.core.storage import Synchronous
from ackstream.client.core.worker import Start
from ackstream.client.parties.answers import Answer
from ackstream.client.parties.signals import Delivered, Expired, RecordSignal, Signal
from ackstream.client.publishing._acks import Callback
from ackstream.client.publishing.publications import FailedMessage, Receipt, Stage
from ackstream.client.queues.queued_messages import AckMode, FlowQos, QueueMessage
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.client.requests.replies import Reply
from ackstream.kafka.clients import DELIVERY_SECONDS
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.twin.subscriptions import Publication, Subscription
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.queues import NotSettled
from ackstream.protocol.readers import SampleOutcome
from ackstream.settings import Lake

MAX_BATCH = 100
MAX_SAMPLES, MAX_BYTES = 10_000, 64_000_000


@dataclass(frozen=True)
class ClientOptions:
    """The options of every client."""

    bootstrap_servers: Brokers
    _: KW_ONLY
    on_error: Callable[[Exception], object] | None = None
    on_connection: Callable[[ConnectionState], object] | None = None


@dataclass(frozen=True, kw_only=True)
class RequesterOptions(ClientOptions):
    """The options of a ``Requester``, which documents them."""

    reply_to: str | None = None
    default_timeout: float = 60.0
    grace: float = 10.0
    delivery_timeout: float = DELIVERY_SECONDS
    on_amended: Callable[[Reply], object] | None = None


@dataclass(frozen=True)
class CommandRequest:
    """The arguments of ``Requester.send``, which documents them."""

    command: Envelope
    _: KW_ONLY
    timeout: float | str | None = None
    acks: Iterable[str] | None = None
    response_required: bool | None = None
    correlation_id: str | None = None
    on_stored: Callable[[], None] | None = None


@dataclass(frozen=True)
class RecordRequest:
    """The arguments of ``Requester.send_record``, which documents them."""

    topic: str
    value: bytes | None
    _: KW_ONLY
    key: bytes | None = None
    headers: Mapping[str, str | bytes] | None = None
    acks: Iterable[str]
    timeout: float | str | None = None
    correlation_id: str | None = None
    on_stored: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class ReceiverOptions(ClientOptions):
    """The options of responders and subscribers."""

    handler: Callable[[Any], Answer]
    group: str | None = None
    start: Start = "latest"
    expired: Expired = "skip"
    retry: Retry | None = None


@dataclass(frozen=True, kw_only=True)
class ResponderOptions(ReceiverOptions):
    """The options of a ``Responder``, which documents them."""

    handler: Callable[[Signal], Answer] | Callable[[RecordSignal], Answer]
    labels: Iterable[str] = (LIVE_RESPONSE,)
    topics: Iterable[str] = ()
    once: Path | str | None = None


@dataclass(frozen=True, kw_only=True)
class SubscriberOptions(ReceiverOptions):
    """The options of a ``Subscriber``, which documents them."""

    handler: Callable[[Delivered], Answer]
    subscriptions: Iterable[Subscription]
    labels: Iterable[str] = ()
    automatic: bool = True
    visible: Callable[[Publication], bool] | None = None
    extra: Callable[[str, str], Mapping[str, Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class PublisherOptions(ClientOptions):
    """The options of a ``Publisher``, which documents them."""

    name: str
    store: Path | str | None = None
    stage: Stage = "persisted"
    synchronous: Synchronous = "normal"
    window: int = 1000
    window_bytes: int = 64 * 1024 * 1024
    block: bool = True
    windowed: bool = False
    ack_timeout: float = 2.0
    conflation_ms: int | None = None
    error_on_gap: bool = False
    logon_timeout: float = 60.0
    on_receipt: Callable[[Receipt], object] | None = None
    on_failed_write: Callable[[FailedMessage], object] | None = None
    on_ack: Callable[[CommandAck], object] | None = None
    writer_qos: WriterQos | None = None
    on_application_acknowledgment: Callable[[Callback], object] | None = None


@dataclass(frozen=True, kw_only=True)
class ReaderOptions(ClientOptions):
    """The options of a ``SampleReader``, which documents them."""

    name: str
    handler: Callable[[Sample], object] | None = None
    batch_handler: Callable[[list[Sample]], object] | None = None
    max_batch: int = MAX_BATCH
    retry: Retry | None = None
    qos: ReaderQos | None = None
    role: str | None = None
    durable: bool = True
    writers: Iterable[str] = ("*",)
    topics: Iterable[str] = ("*",)
    filter: Callable[[Sample], bool] | None = None
    labels: Iterable[str] = ()
    lake: Lake | None = None
    max_samples: int = MAX_SAMPLES
    max_bytes: int = MAX_BYTES
    start_timeout: float = 60.0


@dataclass(frozen=True, kw_only=True)
class QueueOptions(ClientOptions):
    """The options of a ``QueueConsumer``, which documents them."""

    queue: str
    name: str
    handler: Callable[[QueueMessage], object] | None = None
    batch_handler: Callable[[list[QueueMessage]], object] | None = None
    max_batch: int = MAX_BATCH
    mode: AckMode = "client"
    backlog: int | None = None
    outcomes: Iterable[SampleOutcome] = ()
    lake: Lake | None = None
    ack_batch: int = 1
    ack_timeout: float = 1.0
    flow: FlowQos | None = None
    bind_timeout: float = 60.0
    on_refused: Callable[[NotSettled], object] | None = None


@dataclass(frozen=True, kw_only=True)
class QueryOptions(ClientOptions):
    """The options of a ``QueryClient``, which documents them."""

    name: str
    bookmarks: Path | str | None = None
    timeout: float = 60.0
    heartbeat: float = 30.0
    conflation_ms: int | None = None
    on_ack: Callable[[CommandAck], object] | None = None
