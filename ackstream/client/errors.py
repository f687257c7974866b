"""What can go wrong between a client and its broker, or with a request."""

from __future__ import annotations

from ackstream.errors import AckstreamError


class ClientError(AckstreamError):
    """Root of the client's errors."""


class UnreachableError(ClientError):
    """No broker answers, or a topic does not exist."""


class StoreError(ClientError):
    """A publish store cannot be used: it is damaged, another client's, or there is no room."""


class SettleTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Nobody answers about acknowledgements of consumers: the job that settles is not running, or far behind."""


class ReaderClosedError(ClientError):
    """The reader was closed; what it had not acknowledged it gets again when it starts under the same name."""


class TakenOverError(ClientError):
    """Another client has begun with the same name, which ends this one."""


class NoReplyExpectedError(ClientError, ValueError):
    """The request asks for no response, so that a reply would be waited for in vain."""


class RequestError(ClientError):
    """A request that ended without a reply."""

    def __init__(self, message: str, correlation_id: str) -> None:
        """Name the request: whether and how it was answered can be looked up under its correlation-id."""
        super().__init__(message)
        self.correlation_id = correlation_id


class RequestTimeout(RequestError, TimeoutError):  # noqa: N818 - the word of the field, as in Ditto and HTTP
    """No reply at all came, not even one that says that the deadline passed: nobody answers requests there."""


class NotSentError(RequestError):
    """The broker did not take the request; it may be sent again."""


class ClosedError(RequestError):
    """The requester was closed while the request was open; the request itself goes on."""


class CorrelationIdInUseError(RequestError, ValueError):
    """A request with the same correlation-id is open in this requester."""


class BindTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """No answer to the bind: the job that serves the queues is not running, or far behind."""


class UnknownQueueError(ClientError):
    """There is no work queue of this name."""


class MessageGoneError(ClientError):
    """A delivered message is no longer in Kafka, and the consumer does not know where the table is."""
