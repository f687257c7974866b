"""What a program needs of topics and groups: whether they exist, and whether the broker's ACLs allow it.

Asked once, when it starts. Later the libraries would retry for as long as the program runs, or send in vain.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from kafka.errors import GroupAuthorizationFailedError, KafkaError, RetriableError, TopicAuthorizationFailedError

from ackstream.errors import UnreachableError
from ackstream.kafka.clients import connect_admin, failure
from ackstream.kafka.refusals import not_allowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.settings import Kafka


def check_topics(
    consumer: Any,
    kafka: Kafka,
    *,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    looks_up: Iterable[str] = (),
    group: str | None = None,
) -> None:
    """Make sure that topics (real names) exist, and may be read and written, before anything waits for them.

    :param consumer: asks whether they exist
    :param looks_up: topics of which only the ends are asked for
    :param group: the consumer group to join
    :raises UnreachableError: a topic does not exist, or the broker went away
    :raises AccessRefusedError: the broker does not allow it
    """
    wanted = {"READ": tuple(reads), "WRITE": tuple(writes), "DESCRIBE": tuple(looks_up)}
    try:
        if kafka.security.protocol == "PLAINTEXT":
            known = consumer.topics()
        else:
            with connect_admin(kafka) as admin:
                known = check_access(admin, kafka, wanted, [group] if group else ())
    except KafkaError as error:
        raise failure(kafka, error) from error
    for topic in chain(*wanted.values()):
        if topic not in known:
            raise UnreachableError(
                f"There is no topic {topic} at {kafka.bootstrap}: `ackstream up` creates the topics; otherwise correct "
                f"kafka.topic_prefix (ACKSTREAM_KAFKA_TOPIC_PREFIX) or the name."
            )


def check_access(admin: Any, kafka: Kafka, wanted: Mapping[str, Iterable[str]], groups: Iterable[str] = ()) -> set[str]:
    """Return which of the topics exist, and make sure that what is wanted of those is allowed.

    :param wanted: topics (real names) by operations, such as ``READ``
    :param groups: consumer groups to join or to commit to
    :raises AccessRefusedError: the broker does not allow something of that
    """
    named = [(topic, operation) for operation, topics in wanted.items() for topic in topics]
    found = {topic["name"]: topic for topic in admin.describe_topics(sorted({topic for topic, _ in named}))}
    for topic, operation in named:
        described = found[topic]
        allowed = described["authorized_operations"]
        denied = described["error_code"] == TopicAuthorizationFailedError.errno
        # some brokers do not say what is allowed
        if denied or (described["error_code"] == 0 and allowed is not None and operation not in allowed):
            raise not_allowed(kafka, f"to {operation.lower().replace('_', ' ')} the topic {topic}")
    for group in groups:
        # a coordinator may be moving
        with suppress(RetriableError):
            try:
                admin.describe_groups([group])
            except GroupAuthorizationFailedError:
                raise not_allowed(kafka, f"to use the consumer group {group}") from None
    return {name for name, topic in found.items() if topic["error_code"] == 0}
