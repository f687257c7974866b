"""``[kafka]``, which clients and jobs share. Importing it loads no other section, so that clients start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from ackstream.errors import BadParameterError
from ackstream.settings.base import Part
from ackstream.settings.security import KafkaOptions, KafkaSecurity, OptionalKey

if TYPE_CHECKING:
    from typing_extensions import Self


def job_group(job: str) -> str:
    """Return the consumer group of a job, without the prefix."""
    return f"ackstream-{job}"


class Kafka(Part):
    """Where the broker is and what its topics are called.

    :ivar originator_key: signs who sent a signal, in what the gateway and connections write
    """

    bootstrap: str = Field("localhost:9092", min_length=1)
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    partitions: int = Field(4, ge=1)
    replication: int = Field(1, ge=1)
    security: KafkaSecurity = KafkaSecurity()
    options: KafkaOptions = KafkaOptions()
    originator_key: OptionalKey = None
    on_data_loss: Literal["stop", "continue"] = "stop"

    def topic(self, name: str) -> str:
        """Return a topic's real name: the prefix and the name."""
        return self.topic_prefix + name

    def group(self, name: str) -> str:
        """Return a consumer group's real name: systems that share a cluster share no group either."""
        return self.topic_prefix + name

    def group_of(self, job: str) -> str:
        """Return the consumer group that shows a job's lag; those that Spark reads under begin so."""
        return self.group(job_group(job))

    @classmethod
    def of(cls, bootstrap_servers: str | Kafka) -> Kafka:
        """Return the brokers that a client is given: ``host:port``, several with commas between, or the settings.

        :raises BadParameterError: it is neither
        """
        if isinstance(bootstrap_servers, Kafka):
            return bootstrap_servers
        if not isinstance(bootstrap_servers, str) or not bootstrap_servers:
            raise BadParameterError(
                f"bootstrap_servers is {bootstrap_servers!r}: give host:port, several with commas between, or the Kafka"
                f" of the settings (ackstream.settings.load().kafka)."
            )
        return cls(bootstrap=bootstrap_servers)

    def at(self, bootstrap: str | None, security: KafkaSecurity, options: dict[str, str], topic_prefix: str) -> Kafka:
        """Return the Kafka that clients of Python reach at other brokers, with another prefix.

        :param bootstrap: ``None``: these brokers, whose security and options then hold where no other are given
        """
        if bootstrap is None:
            bootstrap, options = self.bootstrap, self.options.python | options
            security = self.security if security == KafkaSecurity() else security
        other = {"bootstrap": bootstrap, "security": security, "topic_prefix": topic_prefix}
        return self.model_copy(update=other | {"options": KafkaOptions(python=options)})

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        self.options.check(self.security)
        return self
