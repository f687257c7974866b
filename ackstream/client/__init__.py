"""The SDK on kafka-python: requesters and responders, subscribers, publishers and readers, queues and queries.

Every client is made in the same way: ``bootstrap_servers`` first (``host:port``, or the Kafka of the settings), the
rest by keyword; ``name`` identifies the client where that matters. Every message is a :class:`Message`, and every error
that a client raises an :class:`AckstreamError`. Importing it loads neither Spark nor the libraries that read tables.
"""

from types import ModuleType as _ModuleType

from ackstream.client.core.arguments import Retry as Retry
from ackstream.client.core.connection import RequestFuture as RequestFuture
from ackstream.client.core.messages import Message as Message
from ackstream.client.errors import *  # noqa: F403 - every error of the SDK
from ackstream.client.parties.answers import Ack as Ack
from ackstream.client.parties.answers import After as After
from ackstream.client.parties.answers import Answer as Answer
from ackstream.client.parties.answers import Response as Response
from ackstream.client.parties.receivers import Responder as Responder
from ackstream.client.parties.receivers import Subscriber as Subscriber
from ackstream.client.parties.receivers import responder as responder
from ackstream.client.parties.signals import Delivered as Delivered
from ackstream.client.parties.signals import RecordSignal as RecordSignal
from ackstream.client.parties.signals import ResponderStatistics as ResponderStatistics
from ackstream.client.parties.signals import Signal as Signal
from ackstream.client.parties.signals import SubscriberStatistics as SubscriberStatistics
from ackstream.client.publishing.publications import FailedMessage as FailedMessage
from ackstream.client.publishing.publications import PublishStatistics as PublishStatistics
from ackstream.client.publishing.publications import Receipt as Receipt
from ackstream.client.publishing.publisher import Publisher as Publisher
from ackstream.client.queries.bookmarks import LogMessage as LogMessage
from ackstream.client.queries.message_stream import MessageStream as MessageStream
from ackstream.client.queries.query_client import QueryClient as QueryClient
from ackstream.client.queues._queue_link import drain_queue as drain_queue
from ackstream.client.queues.queue_consumer import QueueConsumer as QueueConsumer
from ackstream.client.queues.queue_consumer import QueueStatistics as QueueStatistics
from ackstream.client.queues.queued_messages import FlowQos as FlowQos
from ackstream.client.queues.queued_messages import QueueMessage as QueueMessage
from ackstream.client.reading._reader_link import delete_durable_subscription as delete_durable_subscription
from ackstream.client.reading._reader_link import known_readers as known_readers
from ackstream.client.reading.sample_reader import ReaderStatistics as ReaderStatistics
from ackstream.client.reading.sample_reader import SampleReader as SampleReader
from ackstream.client.reading.samples import ReaderQos as ReaderQos
from ackstream.client.reading.samples import Sample as Sample
from ackstream.client.reading.samples import WriterQos as WriterQos
from ackstream.client.requests.commands import Command as Command
from ackstream.client.requests.replies import ReceivedAck as ReceivedAck
from ackstream.client.requests.replies import Reply as Reply
from ackstream.client.requests.replies import RequesterStatistics as RequesterStatistics
from ackstream.client.requests.replies import Stored as Stored
from ackstream.client.requests.replies import Updates as Updates
from ackstream.client.requests.requester import Requester as Requester
from ackstream.client.requests.requester import fields_of as fields_of
from ackstream.errors import AccessRefusedError as AccessRefusedError
from ackstream.errors import AckstreamError as AckstreamError
from ackstream.errors import BadParameterError as BadParameterError
from ackstream.errors import ClientError as ClientError
from ackstream.errors import DeliveryError as DeliveryError
from ackstream.errors import InconsistentQosError as InconsistentQosError
from ackstream.errors import NotConnectedError as NotConnectedError
from ackstream.errors import OutcomeNotEnabledError as OutcomeNotEnabledError
from ackstream.errors import PreconditionNotMetError as PreconditionNotMetError
from ackstream.errors import UnreachableError as UnreachableError
from ackstream.protocol.ditto.labels import LabelsTakenError as LabelsTakenError
from ackstream.protocol.ditto.twin.subscriptions import Subscription as Subscription
from ackstream.protocol.ditto.twin.subscriptions import subscription as subscription
from ackstream.protocol.errors import DittoError as DittoError

__all__ = [name for name, value in sorted(globals().items()) if name[0] != "_" and not isinstance(value, _ModuleType)]
