"""Kafka addresses of targets: ``topic``, ``topic/key`` or ``topic#partition``.

Source of the rules: Eclipse Ditto, ``KafkaPublishTarget``, ``KafkaValidator``.
"""

from __future__ import annotations

import re

import msgspec

from ackstream.protocol.errors import target_address_invalid

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"[0-9]{1,9}")


class TargetAddress(msgspec.Struct, frozen=True):
    """Where a record goes: a topic, and a key or a partition or neither."""

    topic: str
    key: str | None = None
    partition: int | None = None

    @staticmethod
    def parse(text: str) -> TargetAddress:
        """Read an address: split at its first slash, else at its first hash; an empty key or partition is ignored.

        :raises DittoError: 400 ``connectivity:connection.configuration.invalid``: no topic name, no partition number
        """
        topic, slash, key = text.partition("/")
        partition = ""
        if not slash:
            topic, _, partition = text.partition("#")
        if _TOPIC.fullmatch(topic) is None:
            raise target_address_invalid(text, f"<{topic}> is not the name of a Kafka topic.")
        if partition and _PARTITION.fullmatch(partition) is None:
            raise target_address_invalid(text, f"<{partition}> is not the number of a partition.")
        return TargetAddress(topic, key or None, int(partition) if partition else None)
