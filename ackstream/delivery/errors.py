"""Errors of consumers and publishers of the delivery plane; ``code`` is the name programs know them by."""

from __future__ import annotations

from typing import ClassVar

from ackstream.errors import AckstreamError


class DeliveryError(AckstreamError):
    """Root of these errors."""

    code: ClassVar[str]


class InconsistentQosError(DeliveryError):
    """Settings of a reader, a writer or a queue that contradict each other or a limit; nothing is created."""

    code = "inconsistent_qos"


class PreconditionNotMetError(DeliveryError):
    """A sample is acknowledged that was not handed to the application, or a loan returned that is not out."""

    code = "precondition_not_met"


class BadParameterError(DeliveryError):
    """An argument of a call is out of its range, such as a response that is too long."""

    code = "bad_parameter"


class OutcomeNotEnabledError(DeliveryError):
    """A message is settled with an outcome that the consumer did not declare when it was built."""

    code = "outcome_not_enabled"


class NotConnectedError(DeliveryError):
    """A message is settled by a consumer that is not bound; the queue has the message again."""

    code = "not_connected"
