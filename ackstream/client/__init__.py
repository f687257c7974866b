"""The SDK: requests that get answers, and subscribers that acknowledge them, on kafka-python."""

from ackstream.client.commands import Command, fields_of
from ackstream.client.errors import (
    BindTimeout,
    ClientError,
    ClosedError,
    CorrelationIdInUseError,
    MessageGoneError,
    NoReplyExpectedError,
    NotSentError,
    ReaderClosedError,
    RequestError,
    RequestTimeout,
    SettleTimeout,
    StoreError,
    TakenOverError,
    UnknownQueueError,
    UnreachableError,
)
from ackstream.client.message_stream import CommandTimeout, Message, MessageStream, StreamClosedError
from ackstream.client.publisher import Publisher
from ackstream.client.query_client import QueryClient
from ackstream.client.queue_consumer import QueueConsumer
from ackstream.client.queue_link import QueueMessage, QueueStatistics
from ackstream.client.readers.qos import ReaderQos, WriterQos
from ackstream.client.readers.sample_reader import SampleReader
from ackstream.client.readers.samples import Sample
from ackstream.client.receipts import (
    AcknowledgementTimeout,
    FailedMessage,
    FlushTimeout,
    LogonTimeout,
    PublisherClosedError,
    PublishStatistics,
    ReaderStatistics,
    ReaderTimeout,
    Receipt,
    RequesterStatistics,
    ResponderStatistics,
    Stored,
    SubscriberStatistics,
    WouldBlockError,
)
from ackstream.client.replies import Reply
from ackstream.client.requester import Requester
from ackstream.client.responder import Responder
from ackstream.client.signals import Ack, After, Answer, Delivered, Response, Signal
from ackstream.client.subscriber import Subscriber

__all__ = [
    "Ack",
    "AcknowledgementTimeout",
    "After",
    "Answer",
    "BindTimeout",
    "ClientError",
    "ClosedError",
    "Command",
    "CommandTimeout",
    "CorrelationIdInUseError",
    "Delivered",
    "FailedMessage",
    "FlushTimeout",
    "LogonTimeout",
    "Message",
    "MessageGoneError",
    "MessageStream",
    "NoReplyExpectedError",
    "NotSentError",
    "PublishStatistics",
    "Publisher",
    "PublisherClosedError",
    "QueryClient",
    "QueueConsumer",
    "QueueMessage",
    "QueueStatistics",
    "ReaderClosedError",
    "ReaderQos",
    "ReaderStatistics",
    "ReaderTimeout",
    "Receipt",
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
    "SettleTimeout",
    "Signal",
    "StoreError",
    "Stored",
    "StreamClosedError",
    "Subscriber",
    "SubscriberStatistics",
    "TakenOverError",
    "UnknownQueueError",
    "UnreachableError",
    "WouldBlockError",
    "WriterQos",
    "fields_of",
]
