"""Every setting, once: frozen typed values, read from ``conf/ackstream.toml`` and the environment.

A section is imported when it is used: a client needs only ``Kafka``, and the models of all sections take longer to
build than the client itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ackstream.settings.connections import RouteSettings
    from ackstream.settings.gateway import Gateway, Quota
    from ackstream.settings.jobs import (
        Archive,
        Clock,
        Correlate,
        Destination,
        Persist,
        PublishRule,
        Query,
        QueueJob,
        QueueSettings,
        RequiredRole,
        Settle,
        Spark,
        Twin,
    )
    from ackstream.settings.kafka import Kafka, Lake
    from ackstream.settings.loading import Local, Log, Metrics, Settings, load

__all__ = [
    "Archive", "Clock", "Correlate", "Destination", "Gateway", "Kafka", "Lake", "Local", "Log", "Metrics", "Persist",
    "PublishRule", "Query", "QueueJob", "QueueSettings", "Quota", "RequiredRole", "RouteSettings", "Settings",
    "Settle", "Spark", "Twin", "load",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("Gateway", "Quota"), "gateway"),
    **dict.fromkeys(("Kafka", "Lake"), "kafka"),
    **dict.fromkeys(("Local", "Log", "Metrics", "Settings", "load"), "loading"),
    "RouteSettings": "connections",
}
"""The modules of the names that are not in ``jobs``."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used for the first time (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'jobs')}"), name)
