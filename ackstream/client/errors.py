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


# -- Errors of consumers and publishers of the delivery plane; ``code`` is the name programs know them by.


# -- Why a command or a message is refused: the words, their numbers where a protocol has them, and their errors.
# The words of AMPS are those its libraries know (brokers.md 1.3), those in capitals are Solace's (3.2).


NACK_CODES = {
    "QUEUE_NOT_FOUND": 66,
    "PUBLISH_ACL_DENIED": 69,
    "SPOOL_OVER_QUOTA": 71,
    "QUEUE_SHUTDOWN": 72,
    "MAX_MESSAGE_USAGE_EXCEEDED": 78,
    "INVALID_MESSAGE": 84,
    "UNKNOWN_FLOW_NAME": 94,
    "REPLICATION_IS_STANDBY": 95,
    "LOW_PRIORITY_MSG_CONGESTION": 96,
    "COMMIT_STATUS_UNKNOWN": 127,
    "NO_SUBSCRIPTION_MATCH": 130,
    "SYNC_REPLICATION_INELIGIBLE": 161,
}


class RefusedError(AckstreamError):
    """A command or a message was refused; each known reason has an error of its own."""

    def __init__(self, reason: str, subject: str = "The command") -> None:
        """Say what was refused, and why."""
        super().__init__(f"{subject} was refused: {reason}.")
        self.reason = reason


class AuthFailureError(RefusedError):
    """Who logs on is not who it claims to be."""


class BadFilterError(RefusedError):
    """The filter cannot be understood."""


class DuplicateError(RefusedError):
    """A message with this sequence number is there already; after a failover that is as it should be."""


class InvalidBookmarkError(RefusedError):
    """The bookmark is none, or belongs to another topic."""


class InvalidTopicError(RefusedError):
    """There is no such topic."""


class MessageTooLargeError(RefusedError):
    """The message is larger than the service takes."""


class NameInUseError(RefusedError):
    """Another user is logged on with this client name."""


class NoSubscriptionMatchError(RefusedError):
    """Nobody subscribes to the topic."""


class NotEntitledError(RefusedError):
    """The client may not do that."""


class NotSupportedError(RefusedError):
    """The command cannot be asked for that."""


class OutcomeUnknownError(RefusedError):
    """The message came again, and what became of it is forgotten: the table ``messages`` tells."""


class SequenceGapError(RefusedError):
    """Too many messages wait behind a number that never came; this one can come again once it has."""


class SpoolOverQuotaError(RefusedError):
    """The destination is full."""


_ERRORS: dict[str, type[RefusedError]] = {
    "".join(kind.__name__.removesuffix("Error").lower()): kind for kind in RefusedError.__subclasses__()
}


def error_name(reason: str) -> str:
    """Return the name of a reason's error without the suffix: ``BadFilter`` for ``bad filter``."""
    return "".join(word[:1].upper() + word[1:].lower() for word in reason.replace("_", " ").split())


def refused(reason: str, subject: str = "The command") -> RefusedError:
    """Return the error of a reason; one without an error of its own is a plain :class:`RefusedError`."""
    return _ERRORS.get(error_name(reason).lower(), RefusedError)(reason, subject)
