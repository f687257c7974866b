"""The one factory of Kafka clients, and of the Kafka options of Spark's sources and sinks.

Clients give up on a silent broker after 10 s, reconnect within a second to one that restarts, and never wait for a
batch to fill. They read committed records only, and log in by ``kafka.security``. ``kafka.options`` tune them; a
caller's own options take precedence, so that no option can break a guarantee.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaProducer, errors

from ackstream.errors import AccessRefusedError, ClientError, SettingsError, UnreachableError
from ackstream.kafka.library import AdaptedConsumer, KeyPartitioner, PatientClient, Sockets, keep_identity
from ackstream.kafka.login import addresses, check_login, guess_protocol, not_allowed, of_login, unresolved
from ackstream.kafka.security import java_security, python_security
from ackstream.settings import Kafka
from ackstream.settings.security import is_loopback

if TYPE_CHECKING:
    from typing_extensions import Self

BOOTSTRAP_MS = 10_000
RECONNECT_MS = 1_000
"""A broker that restarts is back within seconds; the library's 30 s would outlast many a deadline."""
METADATA_MS = 30_000
"""The time within which partitions added to a topic are discovered."""
MAX_RECORD_BYTES = 10 * 1024 * 1024
"""The limit of the topics, too: a record of several MB must arrive, since the service refuses it with a reason."""

_SEND_AGAIN = (
    errors.RetriableError,
    # after a restart the library may give up a batch whose sequence it cannot continue
    errors.OutOfOrderSequenceNumberError,
    errors.UnknownProducerIdError,
    errors.InvalidProducerEpochError,
    # the partitions of the topic are unknown for a moment
    ValueError,
)
"""Errors after which a record may be sent again: if the first one was stored after all, the correlation-id identifies
the duplicate."""

OF_RECORD = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidRecordError,
    errors.InvalidTimestampError,
)
"""Errors that recur each time the record is sent."""

EXPECTED = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
    errors.RequestTimedOutError,
)
"""The errors of :func:`failure`: a broker refuses access, or is unavailable."""
RESEND_SECONDS = 0.2
"""The pause before a record is sent again."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 60.0
DELIVERY_SECONDS = 120.0
TRANSACTION_SECONDS = 15.0
"""Time for which an unfinished transaction of a killed program hides later records of its topics from readers."""
CLOSE_SECONDS = 5.0
BATCH_BYTES = 128 * 1024
LINGER_MS = 2
"""Records sent within it share a request: with less, each costs a turn of the sending thread."""

COMMITTED = "read_committed"
_COMMON = {
    "bootstrap_timeout_ms": BOOTSTRAP_MS,
    "reconnect_backoff_max_ms": RECONNECT_MS,
    "metadata_max_age_ms": METADATA_MS,
    "metrics_enabled": False,
}
"""The defaults that ``kafka.options`` may change."""
_FIXED = {
    "allow_auto_create_topics": False,
    "isolation_level": COMMITTED,
    "kafka_client": PatientClient,
    "selector": Sockets,
}

_DEFAULTS = KafkaProducer.DEFAULT_CONFIG | KafkaAdminClient.DEFAULT_CONFIG | AdaptedConsumer.DEFAULT_CONFIG
_NUMBERS = {"receive_buffer_bytes", "send_buffer_bytes"}
"""The numeric options of kafka-python whose defaults do not show their type."""
_OBJECTS = {"api_version", "ssl_context", "sasl_oauth_token_provider"} | {
    name
    for name, default in _DEFAULTS.items()
    if name.endswith("serializer") or not isinstance(default, (bool, int, float, str, type(None)))
}
"""Options of kafka-python that are Python objects."""


def may_pass(error: BaseException | None) -> bool:
    """Return whether a record that was not stored may be sent again; a record that is not valid text never may."""
    return isinstance(error, _SEND_AGAIN) and not isinstance(error, UnicodeError)


def connect_producer(
    kafka: Kafka,
    topic: str | None,
    *,
    delivery_timeout: float = DELIVERY_SECONDS,
    linger_ms: int = LINGER_MS,
    transactional_id: str | None = None,
) -> Any:
    """Return a producer that neither loses nor duplicates records while the broker is briefly unavailable."""
    # ``topic``: the real name of an existing one, whose partitions are looked up so that sending does not block;
    # ``None``: not known yet. ``delivery_timeout``: seconds after which a record that the broker does not accept fails.
    # ``transactional_id``: it ends the transactions of an earlier producer of that id, and sends within transactions,
    # which the broker aborts after ``TRANSACTION_SECONDS``. Raises UnreachableError: no broker answers.
    milliseconds = round(delivery_timeout * 1000)
    config = {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": linger_ms,
        # an upper bound: with the library's 16 KB, many records need many requests
        "batch_size": BATCH_BYTES,
        # the library requires at least linger and request together
        "delivery_timeout_ms": milliseconds + linger_ms,
        "request_timeout_ms": min(30_000, milliseconds),
        # partitions are known from the start; send() blocks only if a broker forgets them for a moment
        "max_block_ms": RECONNECT_MS,
        "max_request_size": MAX_RECORD_BYTES,
        "partitioner": KeyPartitioner(),
    }
    if transactional_id is not None:
        config |= {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": round(TRANSACTION_SECONDS * 1000),
            "max_block_ms": milliseconds,
        }
    producer = _connect(KafkaProducer, kafka, config)
    try:
        if transactional_id is None:
            keep_identity(producer)
        else:
            producer.init_transactions()
        if topic is not None:
            look_up(producer, topic)
    except errors.KafkaError as error:
        close_producer(producer, 0)
        raise failure(kafka, error) from error
    return producer


def look_up(producer: Any, topic: str, lacks: Callable[[], bool] = bool) -> Any:
    """Return a producer's partitions of a topic; wait as for a first connection, or raise a KafkaTimeoutError."""
    # ``max_block_ms`` is short for a busy broker, and for a new topic without a leader; ``lacks``: there is no such one
    end = monotonic_ms() + BOOTSTRAP_MS
    while True:
        try:
            return producer.partitions_for(topic)
        except errors.KafkaTimeoutError:
            if monotonic_ms() >= end or lacks():
                raise


def send(
    producer: Any, stored: Callable[[Any], None], failed: Callable[[BaseException], None], topic: str, **record: Any
) -> None:
    """Send a record (value, key, …), and report it as stored or as failed, at once or in the producer's thread."""
    try:
        sent = producer.send(topic, **record)
    except (errors.KafkaError, ValueError) as error:
        failed(error)
    else:
        sent.add_callback(stored)
        sent.add_errback(failed)


def close_producer(producer: Any, timeout: float = CLOSE_SECONDS) -> bool:
    """Send buffered records for at most ``timeout`` seconds, then the rest has failed; return whether it did not."""
    # In a callback of the producer this returns ``False`` at once, and another thread does it.
    sender = producer._sender  # noqa: SLF001 - there is no public way
    if threading.current_thread() is sender:
        # the thread would wait for itself
        threading.Thread(target=close_producer, args=(producer, timeout), name="ackstream-closing").start()
        return False
    try:
        producer.close(timeout=timeout)
    except errors.KafkaTimeoutError:
        # close() gives up at its flush and leaves the thread running: end that first, then there is nothing to flush
        sender.force_close()
        sender.join()
        producer.close(timeout=1)
    return True


def connect_consumer(kafka: Kafka, group: str | None, **config: Any) -> Any:
    """Return a consumer that commits nothing by itself; ``config`` of kafka-python overrides ``kafka.options``."""
    # Raises UnreachableError: no broker answers; SettingsError: ``kafka.options`` are wrong.
    return _connect(AdaptedConsumer, kafka, {"enable_auto_commit": False, "group_id": group, **config})


def connect_admin(kafka: Kafka, **config: Any) -> Any:
    """Return an admin client, which is a context manager; raise an UnreachableError if no broker answers."""
    return _connect(KafkaAdminClient, kafka, config)


def cluster_id(kafka: Kafka) -> str:
    """Return the unique id of a cluster; raise an UnreachableError if no broker answers."""
    with connect_admin(kafka) as admin:
        return str(admin.describe_cluster()["cluster_id"])


def _connect(client: Any, kafka: Kafka, config: Mapping[str, Any]) -> Any:
    """Connect a client; ``config`` overrides ``kafka.options``, and these the options of all clients."""
    known = client.DEFAULT_CONFIG.keys()
    own = {**_FIXED, **config, "bootstrap_servers": kafka.bootstrap.split(",")}
    options = python_options(kafka, known - own.keys())
    try:
        if kafka.security.protocol != "PLAINTEXT":
            check_login(kafka.bootstrap, kafka.security)
        merged = {**_COMMON, **options, **python_security(kafka.security), **own}
        return client(**{name: value for name, value in merged.items() if name in known})
    except (errors.KafkaError, ValueError, TypeError, RuntimeError, OSError) as error:
        if isinstance(error, errors.KafkaError) and not isinstance(error, errors.KafkaConfigurationError):
            raise failure(kafka, error) from error
        # else a codec or a file that this machine lacks, or values that exclude each other
        raise SettingsError(
            f"No Kafka client can be made with kafka.options.python and kafka.security: {str(error).rstrip('.')}. "
            f"Correct them."
        ) from error


def python_options(kafka: Kafka, known: Collection[str] = _DEFAULTS) -> dict[str, Any]:
    """Return the ``known`` ones of ``kafka.options.python`` in kafka-python's spelling and types."""
    # ``request.timeout.ms`` is ``request_timeout_ms`` there; numbers and booleans are read from their texts. Raises
    # SettingsError: no client knows the option, or its value has the wrong type.
    result = {}
    for key, text in kafka.options.python.items():
        name = key.replace(".", "_")
        if name not in _DEFAULTS or name in _OBJECTS:
            raise SettingsError(
                f"kafka.options.python has {key}, which no client of Python takes from the settings: remove it, or "
                f"move it to kafka.options.java if it is for Spark."
            )
        if name in known:
            result[name] = _typed(key, text, 0 if name in _NUMBERS else _DEFAULTS[name])
    return result


def _typed(key: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, (int, float)):
            return int(text)
    except (KeyError, ValueError):
        wanted = "true or false" if isinstance(default, bool) else "a whole number"
        raise SettingsError(f"kafka.options.python has {key} = {text!r}, which is not {wanted}: correct it.") from None
    return text


def spark_options(kafka: Kafka, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka sources and sinks; ``own`` (for the JVM's client) override the settings."""
    fixed = {"isolation.level": COMMITTED, **java_security(kafka.security), "bootstrap.servers": kafka.bootstrap}
    config = {**kafka.options.java, **(own or {}), **fixed}
    return {f"kafka.{key}": value for key, value in config.items()}


def failure(kafka: Kafka, error: errors.KafkaError) -> ClientError:
    """Return the error for a broker that refuses, or does not answer, with the remedy."""
    if isinstance(error, errors.SaslAuthenticationFailedError):
        return AccessRefusedError(of_login(kafka.bootstrap, kafka.security, str(error)))
    if isinstance(error, errors.AuthorizationError):
        return not_allowed(kafka, f"that ({error})")
    if isinstance(error, errors.LeaderNotAvailableError):
        return UnreachableError(f"{error.args[0]}: start the broker that has its newest records.")
    hint = guess_protocol(kafka.bootstrap) if kafka.security.protocol == "PLAINTEXT" else None
    if hint is None and (host := unresolved(kafka.bootstrap)) is not None:
        hint = f"the name {host} does not resolve: correct kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP)"
    here = all(is_loopback(host) for host, _ in addresses(kafka.bootstrap))
    start = "start one with `ackstream up`" if here else "start its brokers"
    remedy = hint or f"{start}, or correct kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP)"
    return UnreachableError(f"No Kafka answers at {kafka.bootstrap}: {remedy}.")


def backoff(attempt: int) -> float:
    """Return the seconds to wait before attempt 1, 2, …: 0.1, 0.2, 0.4, … up to 60."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16))


class Failures:
    """Decides which failures of work that is retried at once to log, in pauses that grow by :func:`backoff`."""

    def __init__(self) -> None:
        self._logged, self._quiet_until = 0, float("-inf")

    def due(self, now: float) -> bool:
        """Return whether to log a failure at ``now`` (seconds); after a minute without one, the pauses start again."""
        if now < self._quiet_until:
            return False
        self._logged = 1 if now > self._quiet_until + MAX_BACKOFF_SECONDS else self._logged + 1
        self._quiet_until = now + backoff(self._logged)
        return True


def monotonic_ms() -> int:
    """Return the time of the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class Closing(ABC):
    """Base of objects that are closed at the end of their ``with`` block: ``with Requester(…) as requester``."""

    @abstractmethod
    def close(self) -> None:
        """Finish and disconnect; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
