"""``[[connections]]``: sources and targets of messages on other systems, and ``[[routes]]`` to other Kafka systems.

The terms of connections are those of Eclipse Ditto (sources, targets, reply-target), in the settings' spelling. Their
transports are in ``connectivity/transports/``, Ditto's rules of them in ``protocol/ditto/connection_rules.py``.
"""

from operator import attrgetter
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ackstream.protocol.ditto import connection_rules as rules
from ackstream.protocol.ditto.headers import taken_headers
from ackstream.protocol.ditto.labels import parse_declared, parse_label
from ackstream.protocol.ditto.placeholders import Pipeline, Template
from ackstream.protocol.ditto.signal_defaults import signal_kind
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.settings.base import Milliseconds, Part, accepted_by, duration
from ackstream.settings.kafka import Kafka, OtherKafka
from ackstream.settings.security import ELSEWHERE, HostName, OptionalSecret, Tls, is_loopback, revealed

_IS_TEMPLATE = AfterValidator(accepted_by(Template.parse))
_IS_KAFKA_ADDRESS = AfterValidator(accepted_by(lambda text: "{{" in text or rules.TargetAddress.parse(text)))
_TLS = BeforeValidator(lambda value: {True: {}, False: None}[value] if isinstance(value, bool) else value)
TemplateText = Annotated[str, Field(min_length=1), _IS_TEMPLATE]
"""A text with placeholders in double braces."""
MappedText = Annotated[TemplateText, ELSEWHERE]
"""A text with placeholders that may contain secrets."""


def _command_topic(text: str) -> None:
    # placeholders may give the thing of a command and the subject of a message, but not its kind
    topic = TopicPath.parse_whole(Template.parse(text).filled("x"))
    if signal_kind(topic, {}) is None:
        raise ValueError("it is not the topic of a command or a message, and a payload can become nothing else")


def _of_clients(mapping: dict[str, str]) -> None:
    for name in mapping:
        if not taken_headers({name: ""}):
            problem = "only the system sets the header {header}, which it acts upon: remove it"
            raise PydanticCustomError("internal_header", problem, {"header": name})


Subject = Annotated[str, Field(pattern=r"^[^*\s]+$")]
"""The subjects that a connection acts as; ``[[gateway.access]]`` grants them rights."""

HeaderMapping = Annotated[dict[str, MappedText], AfterValidator(accepted_by(_of_clients))]
PipelineText = Annotated[str, AfterValidator(accepted_by(Pipeline.parse))]
SubscriptionText = Annotated[str, AfterValidator(accepted_by(rules.target_subscription))]
Label = Annotated[str, AfterValidator(accepted_by(parse_label))]
Statuses = Annotated[str, Field(pattern="^[345]([0-9][0-9]|xx)$")]
ResponseKind = Literal["response", "error", "nack"]


class AcknowledgementRequests(Part):
    """Acknowledgements requested for the messages of a source."""

    includes: tuple[Label, ...] = ()
    filter: PipelineText | None = None


class ReplyTarget(Part):
    """The address that responses go to, and which kinds of them: by default all, as the table of headers has them."""

    address: MappedText = Field(repr=False)
    expected: tuple[ResponseKind, ...] = ("response", "error", "nack")
    header_mapping: dict[str, MappedText] = Field({}, repr=False)


class PayloadTemplate(Part):
    """Turns a payload of any form into a command or message, with headers of its own; the payload becomes its value."""

    topic: Annotated[TemplateText, AfterValidator(accepted_by(_command_topic))]
    path: Annotated[TemplateText, Field(pattern="^/")] = "/"
    headers: HeaderMapping = Field({}, repr=False)


class Enforcement(Part):
    """Refuses a message unless one of ``filters``, resolved for its entity, is the text of ``input``."""

    input: TemplateText
    filters: tuple[TemplateText, ...] = Field(min_length=1)


class Source(Part):
    """Addresses that messages come from. From ``qos`` 1 on, the acknowledgements of a message decide its settlement."""

    addresses: tuple[str, ...] = Field(min_length=1)
    subjects: tuple[Subject, ...] = ()
    enforcement: Enforcement | None = None
    qos: Literal[0, 1, 2] = 1
    acknowledgement_requests: AcknowledgementRequests = AcknowledgementRequests()
    declared_acks: tuple[Label, ...] = ()
    reply_target: ReplyTarget | None = None
    header_mapping: HeaderMapping = Field({}, repr=False)
    payload_mapping: tuple[Literal["ditto"] | PayloadTemplate, ...] = Field(("ditto",), min_length=1)
    max_in_flight: int = Field(200, ge=1)


class Target(Part):
    """An address, and the signals sent to it, as far as its ``subjects`` may read them.

    ``issued_ack`` is issued for messages that the transport confirms.
    """

    address: MappedText = Field(repr=False)
    topics: tuple[SubscriptionText, ...] = Field(min_length=1)
    subjects: tuple[Subject, ...] = ()
    issued_ack: Label | None = None
    header_mapping: dict[str, MappedText] = Field({}, repr=False)
    payload: Literal["ditto", "value"] = "ditto"


class _Connection(Part):
    id: str = Field(pattern=r"^[a-zA-Z0-9_-]+$")
    max_attempts: int = Field(20, ge=1)
    sources: tuple[Source, ...] = ()
    targets: tuple[Target, ...] = ()

    @property
    def labels(self) -> rules.ConnectionLabels:
        """The labels it declares and issues, with placeholders resolved."""
        declared = [label for source in self.sources for label in source.declared_acks]
        issued = [target.issued_ack for target in self.targets if target.issued_ack]
        return rules.connection_labels(self.id, declared, issued)

    _valid_labels = model_validator(mode="after")(accepted_by(attrgetter("labels")))


class KafkaSourceSettings(Source):
    """Kafka topics. ``start`` is where a new consumer group begins. ``qos`` is 0 by default, as Ditto's is."""

    qos: Literal[0, 1] = 0
    start: Literal["latest", "earliest"] = "latest"


class KafkaTargetSettings(Target):
    """A Kafka address: ``topic``, ``topic/key`` or ``topic#partition``."""

    address: Annotated[TemplateText, Field(repr=False), _IS_KAFKA_ADDRESS, ELSEWHERE]


class KafkaConnection(OtherKafka, _Connection):
    """A Kafka cluster. ``debug``: issued acks name the record."""

    type: Literal["kafka"]
    debug: bool = False
    sources: tuple[KafkaSourceSettings, ...] = ()
    targets: tuple[KafkaTargetSettings, ...] = ()


class _Login(_Connection):
    """``tls``: trusted and own certificates; ``true`` for TLS with the authorities of the system."""

    username: str | None = None
    password: OptionalSecret = None
    tls: Annotated[Tls | None, _TLS] = None

    def hosts(self, own: str) -> list[str]:
        """Return the name or address of the other system; ``own``: the brokers of this one."""
        raise NotImplementedError

    @property
    def secret(self) -> str:
        """The password, empty without one."""
        return revealed(self.password)

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted (TLS)."""
        return self.tls is not None

    def warning(self, own: str) -> str | None:
        """Return the warning about an unencrypted connection to the other system."""
        (host,) = self.hosts(own)
        if self.password is None or self.encrypted or is_loopback(host):
            return None
        return (
            f"Everyone on the network between here and {host} can read the password and the messages of the connection"
            f" {self.id}: nothing is encrypted. Set connections.tls, and the port of the broker for TLS."
        )


class _BrokerConnection(_Login):
    host: HostName = "localhost"
    port: int = Field(ge=1, le=65535)

    def hosts(self, _own: str) -> list[str]:
        return [self.host]


class MqttConnection(_BrokerConnection):
    """An MQTT broker of version 3.1.1 (``mqtt``) or 5 (``mqtt-5``).

    ``reconnect_for_redelivery``: a failed message is retried; if false, it is acknowledged, and lost.
    """

    type: Literal["mqtt", "mqtt-5"]
    port: int = Field(1883, ge=1, le=65535)
    reconnect_for_redelivery: bool = True


class AmqpSourceSettings(Source):
    """AMQP queues, or other nodes of AMQP 1.0."""

    qos: Literal[0, 1] = 1


class Amqp10Connection(_BrokerConnection):
    """An AMQP 1.0 broker or service; addresses are those of its nodes (queues, topics)."""

    type: Literal["amqp-10"]
    port: int = Field(5672, ge=1, le=65535)
    virtual_host: str | None = None
    sources: tuple[AmqpSourceSettings, ...] = ()


class Amqp091TargetSettings(Target):
    """An exchange and a routing key: ``exchange/routing-key``; of the default exchange ``/queue``."""

    address: Annotated[str, Field(pattern=r"/|\{\{", repr=False), _IS_TEMPLATE, ELSEWHERE]


class Amqp091Connection(_BrokerConnection):
    """An AMQP 0.9.1 broker such as RabbitMQ. Sources read queues; a target's address is ``exchange/routing-key``."""

    type: Literal["amqp-091"]
    port: int = Field(5672, ge=1, le=65535)
    virtual_host: str = "/"
    sources: tuple[AmqpSourceSettings, ...] = ()
    targets: tuple[Amqp091TargetSettings, ...] = ()


def _no_sources(sources: tuple[Source, ...]) -> None:
    if sources:
        raise ValueError("connections of the type http-push have no sources; remove them")


class HttpTargetSettings(Target):
    """An HTTP request: ``POST:/path``; also GET, PUT, PATCH and DELETE."""

    address: Annotated[str, Field(pattern="^(GET|POST|PUT|PATCH|DELETE):/", repr=False), _IS_TEMPLATE, ELSEWHERE]


class HttpPushConnection(_Login):
    """An HTTP service that signals are pushed to. ``parallelism``: requests at a time; with 1 they are in order."""

    type: Literal["http-push"]
    url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", repr=False), ELSEWHERE]
    parallelism: int = Field(1, ge=1, le=100)
    timeout: Milliseconds = duration("60s")
    # responses that do not settle a signal, which is sent again
    unavailable_statuses: tuple[Statuses, ...] = ("3xx", "401", "403", "407", "408", "425", "429", "5xx")
    sources: Annotated[tuple[Source, ...], AfterValidator(accepted_by(_no_sources))] = ()
    targets: tuple[HttpTargetSettings, ...] = Field(min_length=1)

    def hosts(self, _own: str) -> list[str]:
        """Return the name in the URL."""
        return [urlsplit(self.url).hostname or ""]

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted (TLS)."""
        return self.url.startswith("https:")

    def _check(self) -> None:
        if self.tls is not None and not self.encrypted:
            raise ValueError("tls has no effect with a URL that begins with http://: write https://")


Connection = Annotated[
    KafkaConnection | MqttConnection | Amqp10Connection | Amqp091Connection | HttpPushConnection,
    Field(discriminator="type"),
]


class RouteSettings(OtherKafka):
    """Forwards the messages of writers to another system, where it is a publisher (Connext 31.12.8, R23).

    The options of ``[kafka]`` do not apply where ``bootstrap`` is given.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)
    writers: tuple[str, ...] = Field(("*",), min_length=1)
    topics: tuple[str, ...] = Field(("*",), min_length=1)
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    label: Annotated[str, AfterValidator(accepted_by(parse_declared))] | None = None

    def target(self, kafka: Kafka) -> Kafka:
        """Return the Kafka of the other system; ``kafka`` is that of this one."""
        return kafka.at(self.bootstrap, self.security, self.options, self.topic_prefix)
