"""The SDK on kafka-python: requesters and responders, subscribers, publishers and readers, queues and queries.

Every client is made in the same way: ``bootstrap_servers`` first (``host:port``, or the Kafka of the settings), all
else by its name; ``name`` is who it is, where that matters. Every message is a :class:`Message`, and every error that a
client raises an :class:`AckstreamError`. Importing it loads neither Spark nor the libraries that read tables.
"""

from ackstream.client.core.messages import Message
from ackstream.client.errors import (
    AcknowledgementTimeout,
    BadFilterError,
    BindTimeout,
    ClosedError,
    CommandTimeout,
    CorrelationIdInUseError,
    FlushTimeout,
    GapError,
    HandlerFailedError,
    InvalidBookmarkError,
    InvalidTopicError,
    LogonTimeout,
    MessageTooLargeError,
    NoReplyExpectedError,
    NoSubscriptionMatchError,
    NotEntitledError,
    NotSentError,
    NotSupportedError,
    OutcomeUnknownError,
    PublisherClosedError,
    QueueShutdownError,
    ReaderClosedError,
    ReaderTimeout,
    RefusedError,
    RequestError,
    RequestTimeout,
    SamplesGoneError,
    SequenceError,
    SequenceGapError,
    SettleTimeout,
    SpoolOverQuotaError,
    StoreError,
    StreamClosedError,
    TakenOverError,
    ThreadDiedError,
    UnknownQueueError,
    WindowError,
    WouldBlockError,
)
from ackstream.client.parties.receivers import Responder, ResponderStatistics, Subscriber, SubscriberStatistics
from ackstream.client.parties.signals import Ack, After, Answer, Delivered, Response, Signal
from ackstream.client.publishing.publications import FailedMessage, PublishStatistics, Receipt
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.queries.message_stream import LogMessage, MessageStream
from ackstream.client.queries.query_client import QueryClient
from ackstream.client.queues.queue_consumer import QueueConsumer, QueueStatistics
from ackstream.client.queues.queued_messages import FlowQos, QueueMessage
from ackstream.client.reading._reader_link import delete_durable_subscription, known_readers
from ackstream.client.reading.sample_reader import ReaderStatistics, SampleReader
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.client.requests._open_requests import RequesterStatistics, Stored
from ackstream.client.requests.commands import Command, fields_of
from ackstream.client.requests.replies import Reply
from ackstream.client.requests.requester import Requester
from ackstream.errors import (
    AccessRefusedError,
    AckstreamError,
    BadParameterError,
    ClientError,
    DeliveryError,
    InconsistentQosError,
    NotConnectedError,
    OutcomeNotEnabledError,
    PreconditionNotMetError,
    UnreachableError,
)
from ackstream.protocol.ditto.labels import LabelsTakenError
from ackstream.protocol.ditto.subscriptions import Subscription, subscription
from ackstream.protocol.errors import DittoError

__all__ = [
    "AccessRefusedError",
    "Ack",
    "AcknowledgementTimeout",
    "AckstreamError",
    "After",
    "Answer",
    "BadFilterError",
    "BadParameterError",
    "BindTimeout",
    "ClientError",
    "ClosedError",
    "Command",
    "CommandTimeout",
    "CorrelationIdInUseError",
    "Delivered",
    "DeliveryError",
    "DittoError",
    "FailedMessage",
    "FlowQos",
    "FlushTimeout",
    "GapError",
    "HandlerFailedError",
    "InconsistentQosError",
    "InvalidBookmarkError",
    "InvalidTopicError",
    "LabelsTakenError",
    "LogMessage",
    "LogonTimeout",
    "Message",
    "MessageStream",
    "MessageTooLargeError",
    "NoReplyExpectedError",
    "NoSubscriptionMatchError",
    "NotConnectedError",
    "NotEntitledError",
    "NotSentError",
    "NotSupportedError",
    "OutcomeNotEnabledError",
    "OutcomeUnknownError",
    "PreconditionNotMetError",
    "PublishStatistics",
    "Publisher",
    "PublisherClosedError",
    "QueryClient",
    "QueueConsumer",
    "QueueMessage",
    "QueueShutdownError",
    "QueueStatistics",
    "ReaderClosedError",
    "ReaderQos",
    "ReaderStatistics",
    "ReaderTimeout",
    "Receipt",
    "RefusedError",
    "Reply",
    "RequestError",
    "RequestTimeout",
    "Requester",
    "RequesterStatistics",
    "Responder",
    "ResponderStatistics",
    "Response",
    "Sample",
    "SampleReader",
    "SamplesGoneError",
    "SequenceError",
    "SequenceGapError",
    "SettleTimeout",
    "Signal",
    "SpoolOverQuotaError",
    "StoreError",
    "Stored",
    "StreamClosedError",
    "Subscriber",
    "SubscriberStatistics",
    "Subscription",
    "TakenOverError",
    "ThreadDiedError",
    "UnknownQueueError",
    "UnreachableError",
    "WindowError",
    "WouldBlockError",
    "WriterQos",
    "delete_durable_subscription",
    "fields_of",
    "known_readers",
    "subscription",
]
