"""The errors of the SDK: one flat tree under :class:`ClientError`, and the error of each reason for a refusal."""

from ackstream.errors import ClientError


class RequestError(ClientError):
    """A request ended without a reply."""

    def __init__(self, message: str, correlation_id: str) -> None:
        """Keep the correlation-id, under which the request's outcome can be looked up."""
        super().__init__(message)
        self.correlation_id = correlation_id


class RequestTimeout(RequestError, TimeoutError):  # noqa: N818 - the word of the field, as in Ditto and HTTP
    """No reply arrived, not even one about the deadline: the correlate job is not running, or far behind."""


class NotSentError(RequestError):
    """The broker has not stored the request, as far as is known: if it has, a copy is carried out a second time."""


class ClosedError(RequestError):
    """The requester was closed while the request was open; the service still processes the request."""


class CorrelationIdInUseError(RequestError, ValueError):
    """A request with the same correlation-id is open in this requester."""


class NoReplyExpectedError(ClientError, ValueError):
    """The request requires no response, so that no reply would arrive."""


class RedriveStopped(ClientError):  # noqa: N818 - no fault of the call
    """Redriving has stopped before its end: too many letters came back, or another run has begun."""


class StoreError(ClientError):
    """A store file cannot be used: it is damaged, belongs to another client, or cannot be written."""


class TakenOverError(ClientError):
    """Another client has started with the same name and ended this one."""


class ThreadDiedError(ClientError):
    """A thread of the client died of an unexpected error, its cause; the client has ended."""


class ForkedError(ClientError):
    """A client is used in a child of its process, which has none of its threads; a child makes clients of its own."""


class PublisherClosedError(ClientError):
    """The publisher was closed before the acknowledgement arrived; a store in a file keeps the message."""


class WouldBlockError(ClientError):
    """The publish window is full, and the publisher waits no longer."""


class WindowError(ClientError, ValueError):
    """The window or the timeout is so small that nothing could be published."""


class GapError(ClientError):
    """The service lacks messages that this publisher has dropped, because they had been acknowledged elsewhere."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(
            f"The server has everything up to {first - 1}, but this store has dropped everything up to {last}: {first} "
            f"to {last} are missing there. Log on to a server that has them, or allow gaps."
        )
        self.missing = range(first, last + 1)


class LogonTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """The logon was not answered: the job that persists messages is not running, or far behind."""


class AcknowledgementTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """A message was not acknowledged in time; it is kept, and its outcome is unknown."""


class FlushTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Some messages were not acknowledged in time; they are kept and sent again."""


class ReaderTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Readers did not acknowledge in time; the messages they lack are kept."""


class ReaderClosedError(ClientError):
    """The reader was closed; a reader of the same name receives its unacknowledged samples."""


class SamplesGoneError(ClientError):
    """Samples that a reader has not acknowledged are no longer in Kafka, and it has no ``lake`` to read them from."""


class HandlerFailedError(ClientError):
    """A route has failed for the maximum number of messages that it may hold."""


class SettleTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """The job that settles acknowledgements of readers did not answer: it is not running, or far behind."""


class BindTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """The job that serves the queues did not answer: it is not running, or far behind."""


class UnknownQueueError(ClientError):
    """No work queue has this name."""


class CommandTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """A command was not acknowledged in time; a subscription that it might have started is cancelled."""


class StreamClosedError(ClientError):
    """The stream has ended, because its client was closed or the subscription was cancelled."""


_KINDS: dict[str, type["RefusedError"]] = {}
"""The errors of the reasons that have one of their own."""


class RefusedError(ClientError):
    """A command or a message was refused for a reason that has no error of its own."""

    def __init_subclass__(cls, reason: str) -> None:
        _KINDS[reason] = cls

    @classmethod
    def of(cls, reason: str, subject: str = "The command", detail: str | None = None) -> "RefusedError":
        """Return the error of a reason, ``bad filter`` or ``BAD_FILTER``; a plain one if it has no class of its own."""
        return _KINDS.get(reason.replace("_", " ").lower(), cls)(reason, subject, detail)

    def __init__(self, reason: str, subject: str = "The command", detail: str | None = None) -> None:
        """Name the refused ``subject`` and the reason; ``detail`` is a sentence about it."""
        super().__init__(f"{subject} was refused: {reason}. {detail or ''}".rstrip())
        self.reason = reason


class BadFilterError(RefusedError, reason="bad filter"):
    """The filter has a syntax error."""


class InvalidBookmarkError(RefusedError, reason="invalid bookmark"):
    """The bookmark is malformed, or belongs to another topic."""


class InvalidTopicError(RefusedError, reason="invalid topic"):
    """The topic does not exist."""


class MessageTooLargeError(RefusedError, reason="message too large"):
    """The message is larger than the service accepts."""


class NoSubscriptionMatchError(RefusedError, reason="no subscription match"):
    """The topic has no subscriber."""


class NotEntitledError(RefusedError, reason="not entitled"):
    """The client lacks the permission."""


class NotSupportedError(RefusedError, reason="not supported"):
    """The command does not support one of its options."""


class OutcomeUnknownError(RefusedError, reason="outcome unknown"):
    """The message was sent again after its outcome was forgotten; the table ``messages`` has it."""


class QueueShutdownError(RefusedError, reason="queue shutdown"):
    """A work queue of the topic takes no messages for the moment; none of the others has the message either."""


class SequenceGapError(RefusedError, reason="sequence gap"):
    """Too many messages wait behind a missing number; this one can be sent again once that number has arrived."""


class SpoolOverQuotaError(RefusedError, reason="spool over quota"):
    """The destination is full."""
