"""The SDK on kafka-python: requesters and responders, subscribers, publishers and readers, queues and queries.

Importing it loads neither Spark nor the libraries that read tables.
"""

from ackstream.client.commands import Command, fields_of
from ackstream.client.durable_readers import delete_durable_subscription, known_readers
from ackstream.client.errors import (
    AcknowledgementTimeout,
    BindTimeout,
    ClosedError,
    CommandTimeout,
    CorrelationIdInUseError,
    FlushTimeout,
    HandlerFailedError,
    LogonTimeout,
    NoReplyExpectedError,
    NotSentError,
    PublisherClosedError,
    ReaderClosedError,
    ReaderTimeout,
    RequestError,
    RequestTimeout,
    SamplesGoneError,
    SettleTimeout,
    StoreError,
    StreamClosedError,
    TakenOverError,
    ThreadDiedError,
    UnknownQueueError,
    WouldBlockError,
)
from ackstream.client.message_stream import Message, MessageStream
from ackstream.client.open_requests import RequesterStatistics, Stored
from ackstream.client.publisher import Publisher
from ackstream.client.query_client import QueryClient
from ackstream.client.queue_consumer import QueueConsumer, QueueStatistics
from ackstream.client.queue_session import FlowQos
from ackstream.client.queued_messages import QueueMessage
from ackstream.client.receipts import FailedMessage, PublishStatistics, Receipt
from ackstream.client.receivers import Responder, ResponderStatistics, Subscriber, SubscriberStatistics
from ackstream.client.replies import Reply
from ackstream.client.requester import Requester
from ackstream.client.sample_reader import ReaderStatistics, SampleReader
from ackstream.client.samples import ReaderQos, Sample, WriterQos
from ackstream.client.signals import Ack, After, Answer, Delivered, Response, Signal
from ackstream.errors import ClientError, UnreachableError

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
    "FlowQos",
    "FlushTimeout",
    "HandlerFailedError",
    "LogonTimeout",
    "Message",
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
    "SamplesGoneError",
    "SettleTimeout",
    "Signal",
    "StoreError",
    "Stored",
    "StreamClosedError",
    "Subscriber",
    "SubscriberStatistics",
    "TakenOverError",
    "ThreadDiedError",
    "UnknownQueueError",
    "UnreachableError",
    "WouldBlockError",
    "WriterQos",
    "delete_durable_subscription",
    "fields_of",
    "known_readers",
]
