"""``[[routes]]`` of the settings: publishers' messages are passed on to another system (Connext 31.12.8, R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from ackstream.protocol.ditto.labels import parse_declared
from ackstream.settings.base import Part, accepted_by

if TYPE_CHECKING:
    from ackstream.settings.model import Kafka


class RouteSettings(Part):
    """Passes the messages of writers on to another system, as a publisher of its own there.

    :ivar writers: whose messages; ``*`` stands for any run of characters
    :ivar topics: of which subjects
    :ivar bootstrap: the brokers of the other system; left out: the same ones
    :ivar topic_prefix: of the other system
    :ivar options: of the Kafka clients there; those of ``[kafka]`` do not hold where ``bootstrap`` is given
    :ivar label: issued to requesters of it once all readers behind the route have finished; left out: none
    """

    # a reader here and a publisher there have it, with a prefix
    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)
    writers: tuple[str, ...] = Field(("*",), min_length=1)
    topics: tuple[str, ...] = Field(("*",), min_length=1)
    bootstrap: str | None = Field(None, min_length=1)
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    options: dict[str, str] = Field({})
    label: Annotated[str, AfterValidator(accepted_by(parse_declared))] | None = None

    def target(self, kafka: Kafka) -> Kafka:
        """Return the Kafka of the other system; ``kafka`` is that of this one."""
        other = {"topic_prefix": self.topic_prefix}
        if self.bootstrap is None:
            return kafka.model_copy(update=other | {"options": kafka.options | self.options})
        return kafka.model_copy(update=other | {"bootstrap": self.bootstrap, "options": self.options})
