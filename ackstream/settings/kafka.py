"""``[kafka]`` and ``[lake]``, which clients and jobs share: they load no other section, so that clients start fast."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ackstream.errors import BadParameterError
from ackstream.settings.base import HomePath, Milliseconds, Part, duration
from ackstream.settings.security import OR_NONE, OAuth, OptionalKey, OptionalSecret, Tls, is_loopback, subject

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]

OF_OPTIONS = ("GSSAPI", "AWS_MSK_IAM")
"""Mechanisms that are set up by ``sasl.*`` in the two tables of options, since the libraries share nothing there."""


def real(topic: str) -> str:
    """Return the real name of a topic of an application for functions that take names without the prefix."""
    return "=" + topic


class KafkaSecurity(Part):
    """``[kafka.security]``: how all clients, those of Python and those of Spark, reach the brokers and log in."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Annotated[Mechanism | None, OR_NONE] = None
    username: str = ""
    password: OptionalSecret = None
    oauth: OAuth = OAuth()
    tls: Tls = Tls()

    @property
    def logs_in(self) -> bool:
        """Whether clients log in (SASL)."""
        return self.protocol.startswith("SASL_")

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted (TLS)."""
        return self.protocol.endswith("SSL")

    @property
    def by_password(self) -> bool:
        """Whether clients log in with a name and a password."""
        return self.mechanism == "PLAIN" or str(self.mechanism).startswith("SCRAM-")

    @property
    def principal(self) -> str:
        """The principal of the clients, unless the brokers map names otherwise; without ``User:``."""
        if self.by_password:
            return self.username
        if self.mechanism == "OAUTHBEARER":
            return self.oauth.client_id
        if self.tls.chain and not self.logs_in:
            return subject(self.tls.chain)
        return "ANONYMOUS"

    def _check(self) -> None:
        """Refuse a missing option, and one without effect, which would be mistaken for protection."""
        secured = self.protocol.replace("PLAINTEXT", "SSL")
        if self.tls != Tls() and not self.encrypted:
            raise ValueError(f"tls has no effect with the protocol {self.protocol}: write {secured}")
        if not self.logs_in:
            if self.mechanism or self.username or self.password or self.oauth != OAuth():
                raise ValueError(
                    f"the protocol {self.protocol} has no login: write SASL_SSL, or remove mechanism, username, "
                    f"password and oauth"
                )
            return
        if self.mechanism is None:
            raise ValueError(f"the protocol {self.protocol} needs a mechanism, such as SCRAM-SHA-512")
        if bool(self.username and self.password) != self.by_password or bool(self.username) != bool(self.password):
            wanted = "needs both username and password" if self.by_password else "takes no username and password"
            raise ValueError(f"the mechanism {self.mechanism} {wanted}")
        given = {"token_url": self.oauth.token_url, "client_id": self.oauth.client_id}
        missing = [name for name, value in (given | {"client_secret": self.oauth.client_secret}).items() if not value]
        if self.mechanism != "OAUTHBEARER" and self.oauth != OAuth():
            raise ValueError(f"oauth has no effect with the mechanism {self.mechanism}: write OAUTHBEARER")
        if self.mechanism == "OAUTHBEARER" and missing:
            raise ValueError(f"the mechanism OAUTHBEARER needs {', '.join(f'oauth.{name}' for name in missing)}")

    def warning(self, bootstrap: str) -> str | None:
        """Return a warning about an unencrypted connection to these brokers; ``None`` if it exposes nothing."""
        if not self.logs_in or self.encrypted or all(map(is_loopback, hosts_of(bootstrap))):
            return None
        return (
            f"Everyone on the network between here and {bootstrap} can read passwords, tokens and records: the "
            f"protocol SASL_PLAINTEXT encrypts nothing. Set kafka.security.protocol to SASL_SSL."
        )


_OWNED = {
    *("bootstrap.servers", "group.id", "group.instance.id", "acks", "enable.idempotence", "isolation.level"),
    *("enable.auto.commit", "auto.offset.reset", "transactional.id", "allow.auto.create.topics"),
    *("key.serializer", "value.serializer", "key.deserializer", "value.deserializer", "interceptor.classes"),
}
"""Options that the guarantees of jobs and clients depend on; operators cannot change them."""


def _free(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        spelled = name.replace("_", ".")
        if spelled in _OWNED:
            raise ValueError(f"{name} is set by ackstream itself, whose guarantees depend on it: remove it")
        if spelled.startswith(("security.", "ssl.")) or spelled == "sasl.mechanism":
            raise ValueError(f"{name} is set in kafka.security, for all clients at once: move it there")
    return options


ClientOptions = Annotated[dict[str, str], AfterValidator(_free), Field(repr=False)]
"""Options of Kafka clients in Kafka's spelling, without those that operators cannot change."""


class KafkaOptions(Part):
    """``[kafka.options]``: further options of the clients of Python, and of those of Spark."""

    python: ClientOptions = Field({})
    java: ClientOptions = Field({})

    def check(self, security: KafkaSecurity) -> None:
        """Refuse options of a login that ``security`` sets itself. Raises ``ValueError`` with a sentence."""
        if security.mechanism not in OF_OPTIONS:
            for name in (*self.python, *self.java):
                if name.replace("_", ".").startswith("sasl."):
                    raise ValueError(f"{name} is set in kafka.security, for all clients at once: move it there")


def hosts_of(bootstrap: str) -> list[str]:
    """Return the names or addresses of brokers."""
    return [address.strip().rpartition(":")[0].strip("[]") for address in bootstrap.split(",")]


def job_group(job: str) -> str:
    """Return the consumer group of a job, without the prefix."""
    return f"ackstream-{job}"


class Kafka(Part):
    """The brokers, and the names of topics and groups."""

    bootstrap: str = Field("localhost:9092", min_length=1, pattern="^[^@]*$")
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    partitions: int = Field(4, ge=1)
    replication: int = Field(1, ge=1)
    security: KafkaSecurity = KafkaSecurity()
    options: KafkaOptions = KafkaOptions()
    originator_key: OptionalKey = None
    on_data_loss: Literal["stop", "continue"] = "stop"

    def topic(self, name: str) -> str:
        """Return a topic's real name: the prefix and the name, or what :func:`real` has marked."""
        return name[1:] if name.startswith("=") else self.topic_prefix + name

    def group(self, name: str) -> str:
        """Return a consumer group's real name: systems on one cluster do not share groups."""
        return self.topic_prefix + name

    def group_of(self, job: str) -> str:
        """Return the consumer group that shows a job's lag; those that Spark reads under begin so."""
        return self.group(job_group(job))

    @classmethod
    def of(cls, bootstrap_servers: str | Kafka) -> Kafka:
        """Return the brokers of ``host:port,host:port`` or of settings; raises ``BadParameterError``."""
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

        Without ``bootstrap`` it is these brokers, whose security and options then apply unless others are given.
        """
        if bootstrap is None:
            bootstrap, options = self.bootstrap, self.options.python | options
            security = self.security if security == KafkaSecurity() else security
        other = {"bootstrap": bootstrap, "security": security, "topic_prefix": topic_prefix}
        return self.model_copy(update=other | {"options": KafkaOptions(python=options)})

    def _check(self) -> None:
        self.options.check(self.security)


class OtherKafka(Part):
    """A Kafka cluster of a connection or route; ``bootstrap`` names it unless it is the system's own.

    Without a ``security`` of its own, ``[kafka.security]`` applies on the system's own cluster.
    """

    bootstrap: str | None = Field(None, min_length=1, pattern="^[^@]*$")
    security: KafkaSecurity = KafkaSecurity()
    options: ClientOptions = Field({})

    def _check(self) -> None:
        KafkaOptions(python=self.options).check(self.security)

    def hosts(self, own: str) -> list[str]:
        """Return the names of the brokers."""
        return hosts_of(self.bootstrap or own)

    def warning(self, own: str) -> str | None:
        """Return the warning about an unencrypted connection to the brokers."""
        return self.security.warning(self.bootstrap or own)


class Lake(Part):
    """The Delta tables."""

    path: Annotated[str, HomePath] = ".ackstream/lake"
    checkpoints: Annotated[str, HomePath] = ".ackstream/checkpoints"
    checkpoint_interval: int = Field(100, ge=1)
    retention: Milliseconds = duration("7d")
    storage_options: dict[str, str] = Field({}, repr=False)
    catalog: str = Field("", pattern=r"^(\w+(\.\w+){0,2})?$")

    def table(self, name: str) -> str:
        """Return a table's location."""
        return f"{self.path.rstrip('/')}/{name}"

    def checkpoint(self, job: str) -> str:
        """Return a job's checkpoint location."""
        return f"{self.checkpoints.rstrip('/')}/{job}"
