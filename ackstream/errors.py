"""ackstream's own errors, whose texts name the fault, its place and the remedy.

Errors that are sent to a requester have another form: ``protocol.errors``.
"""

from typing import ClassVar


class AckstreamError(Exception):
    """Root of the tree. The text is a sentence or a few that a person can act on."""


class SettingsError(AckstreamError):
    """A setting is unknown, malformed or contradicts another; the text names the key, the value and the fix."""


class InputError(AckstreamError):
    """An argument or an option of a command is wrong; the text names it, its value and the fix."""


class LocalError(AckstreamError):
    """A local part (Java, jars, the one-node broker, a port) is missing or unfit; the text names the remedy."""


class MissingExtraError(AckstreamError, ModuleNotFoundError):
    """A module needs a package of an extra that is not installed; the text names the extra."""


class StartError(AckstreamError):
    """A job must not start like this (other checkpoint values, a topic with the wrong configuration)."""


class StoppedError(AckstreamError):
    """A running job cannot go on (its clock stands still, another process does its work, records are gone)."""


class ClientError(AckstreamError):
    """Root of the errors that clients raise."""


class AccessRefusedError(ClientError):
    """Another side refuses a login, a certificate or an access, or shows a certificate that is not to be trusted."""


class UnreachableError(ClientError):
    """No broker answers, a topic does not exist, or a consumer group assigns no partitions."""


class DeliveryError(ClientError):
    """Root of the errors about how a client is made or used; ``code`` is the vendor-neutral name of the error."""

    code: ClassVar[str]


class InconsistentQosError(DeliveryError):
    """The settings of a reader, a writer or a queue contradict each other or a limit; nothing is created."""

    code = "inconsistent_qos"


class PreconditionNotMetError(DeliveryError):
    """A sample is acknowledged that the application never received, or a loan is returned twice."""

    code = "precondition_not_met"


class BadParameterError(DeliveryError):
    """An argument of a call is out of range, such as a response that is too long."""

    code = "bad_parameter"


class OutcomeNotEnabledError(DeliveryError):
    """A message is settled with an outcome that the consumer did not declare when it was created."""

    code = "outcome_not_enabled"


class NotConnectedError(DeliveryError):
    """A message is settled by a consumer that is no longer bound; the queue delivers the message again."""

    code = "not_connected"
