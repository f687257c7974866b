"""ackstream's own errors, whose texts name the fault, its place and the remedy, and the check of imports of extras.

Errors that are sent to a requester have another form: ``protocol.errors``.
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any, ClassVar

_JAVA = re.compile(r'^(?:(?:Caused by)?: |Exception in thread "[^"\n]*" )(.+)', re.MULTILINE)
"""The first line of an exception in a stack of Java, as a JVM, py4j and Spark print it."""


def cause(error: object) -> str:
    """Return the last cause in a stack of Java, which is the deepest; without a stack the first line of the text."""
    found: list[str] = _JAVA.findall(str(error)) or [str(error).partition("\n")[0]]
    return found[-1].strip().rstrip(".")


class AckstreamError(Exception):
    """Root of the tree. The text is a sentence or a few that a person can act on."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep text and attributes in a copy or another process, for any arguments of the class."""
        return _copied, (type(self), self.args), vars(self)


def _copied(kind: type[AckstreamError], arguments: tuple[Any, ...]) -> AckstreamError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


class SettingsError(AckstreamError):
    """A setting is unknown, malformed or contradicts another; the text names the key, the value and the fix."""


class InputError(AckstreamError):
    """An argument or an option of a command is wrong; the text names it, its value and the fix."""


class LocalError(AckstreamError):
    """A local part (Java, jars, the one-node broker, a port) is missing or unfit; the text names the remedy."""


class MissingExtraError(AckstreamError, ModuleNotFoundError):
    """A module needs a package of an extra that is not installed; the text names the extra."""


class StartError(AckstreamError):
    """A job must not start in this state (other checkpoint values, a topic with the wrong configuration)."""


class TakenError(StartError):
    """Another process runs the job: it shows signs of life."""


class StoppedError(AckstreamError):
    """A running job cannot continue (its clock stands still, another process does its work, records are gone)."""


class ClientError(AckstreamError):
    """Root of the errors that clients raise."""


class AccessRefusedError(ClientError):
    """The other side refuses a login, a certificate or an access, or shows an untrusted certificate."""


class UnreachableError(ClientError):
    """No broker answers, a topic does not exist, or a consumer group assigns no partitions."""


class DeliveryError(ClientError):
    """Root of the errors about how a client is made or used; ``code`` is the vendor-neutral name of the error."""

    code: ClassVar[str]


class InconsistentQosError(DeliveryError):
    """The settings of a reader, a writer or a queue contradict each other or a limit; nothing is created."""

    code = "inconsistent_qos"


class PreconditionNotMetError(DeliveryError):
    """A sample is acknowledged that was never received, a loan is returned twice, or settled work goes on."""

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


# -- extras ------------------------------------------------------------------------------------------------------------

EXTRAS = {
    "cli": ("psutil", "rich", "typer"),
    "tls": ("cryptography",),
    "testing": ("numpy",),
    "spark": ("delta", "pandas", "py4j", "pyarrow", "pyspark", "re2"),
    "lake": ("deltalake", "duckdb"),
    "metrics": ("prometheus_client",),
    "tracing": ("opentelemetry",),
    "gateway": ("anyio", "h11", "jwt", "starlette", "uvicorn", "websockets"),
    "connect": ("httpx", "paho", "pika"),
    "amqp-10": ("proton",),
}
"""The packages, as they are imported, by the extra to install; of several extras with a package, the one named here."""

_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}

_IMPORT = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
"""The modules of the import itself, which have the second name until the first is imported."""


class MissingExtras:
    """The last of ``sys.meta_path``, for imports that no other finder has found; it finds nothing either.

    Imports by other programs fail as they always do.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004 - Python's signature
        """Raise for a package of an extra that a module of ackstream imports.

        :raises MissingExtraError: with a sentence that names the extra
        """
        extra = _EXTRA_OF.get(name)
        if extra is None or not (importer := _importer(sys._getframe(1))).startswith(f"{__package__}."):  # noqa: SLF001
            return
        raise MissingExtraError(
            f"The extra {extra} of ackstream is not installed ({importer} needs {name}): run "
            f"`pip install 'ackstream[{extra}]'`.",
            name=name,
        )


def _importer(frame: FrameType | None) -> str:
    """Return the name of the module that imports, above the frames of the import itself."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _IMPORT:
            return name
        frame = frame.f_back
    return ""
