"""``[[connections]]`` of the settings: sources and targets of messages on other systems, and their acknowledgements.

The terms are those of Eclipse Ditto's connections (sources, targets, reply-target), in the settings' spelling.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ackstream.protocol.ditto.connections import ConnectionLabels, TargetAddress, connection_labels, target_subscription
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.ditto.placeholders import Pipeline, Template
from ackstream.protocol.errors import DittoError
from ackstream.settings.base import Part

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


def _accepted_by(read: Callable[[T], object]) -> Callable[[T], T]:
    """Return a validator of the values that ``read`` accepts."""

    def check(value: T) -> T:
        try:
            read(value)
        except DittoError as error:
            raise ValueError(f"{error.message} {error.description or ''}") from error
        return value

    return check


TemplateText = Annotated[str, Field(min_length=1), AfterValidator(_accepted_by(Template.parse))]
"""A text with placeholders in double braces."""

PipelineText = Annotated[str, AfterValidator(_accepted_by(Pipeline.parse))]
SubscriptionText = Annotated[str, AfterValidator(_accepted_by(target_subscription))]
Label = Annotated[str, AfterValidator(_accepted_by(parse_label))]
ResponseKind = Literal["response", "error", "nack"]


class AcknowledgementRequests(Part):
    """Acknowledgements requested for the messages of a source."""

    includes: tuple[Label, ...] = ()
    filter: PipelineText | None = None


class ReplyTarget(Part):
    """The address that responses go to, and which kinds of them."""

    address: TemplateText
    expected: tuple[ResponseKind, ...] = ("response", "error")
    header_mapping: dict[str, TemplateText] = Field({})


class PayloadTemplate(Part):
    """Turns a payload of any form into a command or message; the payload becomes its value."""

    topic: TemplateText
    path: TemplateText = "/"


class Source(Part):
    """Addresses that messages come from. With ``qos`` 1 the acknowledgements of a message decide its settlement."""

    addresses: tuple[str, ...] = Field(min_length=1)
    qos: Literal[0, 1] = 0
    acknowledgement_requests: AcknowledgementRequests = AcknowledgementRequests()
    declared_acks: tuple[Label, ...] = ()
    reply_target: ReplyTarget | None = None
    header_mapping: dict[str, TemplateText] = Field({})
    payload_mapping: tuple[Literal["ditto"] | PayloadTemplate, ...] = Field(("ditto",), min_length=1)
    max_in_flight: int = Field(200, ge=1)


class Target(Part):
    """An address, and the signals sent to it. ``issued_ack`` is issued for what the transport confirms."""

    address: TemplateText
    topics: tuple[SubscriptionText, ...] = Field(min_length=1)
    issued_ack: Label | None = None
    header_mapping: dict[str, TemplateText] = Field({})
    payload: Literal["ditto", "value"] = "ditto"


class _Connection(Part):
    id: str = Field(pattern=r"^[a-zA-Z0-9_-]+$")
    sources: tuple[Source, ...] = ()
    targets: tuple[Target, ...] = ()

    @property
    def labels(self) -> ConnectionLabels:
        """The labels it declares and issues, with placeholders resolved."""
        declared = [label for source in self.sources for label in source.declared_acks]
        return connection_labels(self.id, declared, [target.issued_ack for target in self.targets if target.issued_ack])

    _valid_labels = model_validator(mode="after")(_accepted_by(attrgetter("labels")))


class KafkaSourceSettings(Source):
    """Kafka topics. ``start`` is where a new consumer group begins."""

    start: Literal["latest", "earliest"] = "latest"


def _kafka_address(text: str) -> object:
    return "{{" in text or TargetAddress.parse(text)


class KafkaTargetSettings(Target):
    """A Kafka address: ``topic``, ``topic/key`` or ``topic#partition``."""

    address: Annotated[TemplateText, AfterValidator(_accepted_by(_kafka_address))]


class KafkaConnection(_Connection):
    """A Kafka cluster; ``bootstrap`` names it unless it is the system's own. ``debug``: issued acks name the record."""

    type: Literal["kafka"]
    bootstrap: str | None = Field(None, min_length=1)
    options: dict[str, str] = Field({})
    debug: bool = False
    sources: tuple[KafkaSourceSettings, ...] = ()
    targets: tuple[KafkaTargetSettings, ...] = ()


class MqttConnection(_Connection):
    """An MQTT 3.1.1 broker. ``reconnect_for_redelivery``: reconnect whenever a message must be redelivered."""

    type: Literal["mqtt"]
    host: str = Field("localhost", min_length=1)
    port: int = Field(1883, ge=1, le=65535)
    tls: bool = False
    username: str | None = None
    password: SecretStr | None = None
    reconnect_for_redelivery: bool = False


Connection = Annotated[KafkaConnection | MqttConnection, Field(discriminator="type")]
