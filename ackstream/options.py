"""``kafka.options`` of the settings for the clients of kafka-python; Spark takes them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from ackstream.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.settings import Kafka


def options(kafka: Kafka, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``kafka.options`` as kafka-python wants them, of those names in ``known`` (a client's default values).

    ``security.protocol`` is ``security_protocol`` there; numbers and booleans are read from their texts.

    :raises SettingsError: no client of kafka-python knows the option, or its value is not of its type
    """
    result = {}
    for key, text in kafka.options.items():
        name = key.replace(".", "_")
        if name in known:
            result[name] = _typed(key, text, known[name])
        elif not any(name in client.DEFAULT_CONFIG for client in (KafkaConsumer, KafkaProducer, KafkaAdminClient)):
            raise SettingsError(f"kafka.options has {key}, which the Kafka client does not know: remove it.")
    return result


def _typed(key: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, (int, float)):
            return int(text)
    except (KeyError, ValueError):
        wanted = "true or false" if isinstance(default, bool) else "a whole number"
        raise SettingsError(f"kafka.options has {key} = {text!r}, which is not {wanted}: correct it.") from None
    return text
