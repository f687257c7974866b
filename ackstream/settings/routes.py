"""``[[routes]]`` of the settings: publishers' messages are passed on to another system (Connext 31.12.8, R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, model_validator

from ackstream.protocol.ditto.labels import parse_declared
from ackstream.settings.base import Part, accepted_by
from ackstream.settings.security import ClientOptions, KafkaOptions, KafkaSecurity

if TYPE_CHECKING:
    from typing_extensions import Self

    from ackstream.settings.kafka import Kafka


class RouteSettings(Part):
    """Passes the messages of writers on to another system, as a publisher of its own there.

    :ivar writers: whose messages; ``*`` stands for any run of characters
    :ivar topics: of which subjects
    :ivar bootstrap: the brokers of the other system; left out: the same ones
    :ivar topic_prefix: of the other system
    :ivar security: of the clients there; left out: that of ``[kafka.security]`` unless ``bootstrap`` is given
    :ivar options: of the Kafka clients there; those of ``[kafka]`` do not hold where ``bootstrap`` is given
    :ivar label: issued to requesters of it once all readers behind the route have finished; left out: none
    """

    # a reader here and a publisher there have it, with a prefix
    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)
    writers: tuple[str, ...] = Field(("*",), min_length=1)
    topics: tuple[str, ...] = Field(("*",), min_length=1)
    bootstrap: str | None = Field(None, min_length=1)
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    security: KafkaSecurity = KafkaSecurity()
    options: ClientOptions = Field({})
    label: Annotated[str, AfterValidator(accepted_by(parse_declared))] | None = None

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        KafkaOptions(python=self.options).check(self.security)
        return self

    def warning(self, own: str) -> str | None:
        """Return what the way to the other system exposes; ``own``: the brokers of this one."""
        return self.security.warning(self.bootstrap or own)

    def target(self, kafka: Kafka) -> Kafka:
        """Return the Kafka of the other system; ``kafka`` is that of this one."""
        return kafka.at(self.bootstrap, self.security, self.options, self.topic_prefix)
