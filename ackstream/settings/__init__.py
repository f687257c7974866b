"""Every setting, once: frozen typed values, read from ``conf/ackstream.toml`` and the environment.

A section is imported when it is used: a client needs ``Kafka`` alone, and the models of all sections take longer to
build than the client itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ackstream.settings.gateway import Gateway
    from ackstream.settings.kafka import Kafka
    from ackstream.settings.lake import Destination, Lake
    from ackstream.settings.loading import load
    from ackstream.settings.model import (
        Archive,
        Clock,
        Correlate,
        Local,
        Query,
        QueueJob,
        RequiredRole,
        Settings,
        Settle,
        Spark,
        Twin,
    )
    from ackstream.settings.persist import Persist, PublishRule
    from ackstream.settings.quotas import Quota
    from ackstream.settings.routes import RouteSettings
    from ackstream.settings.telemetry import Log, Metrics

__all__ = [
    "Archive",
    "Clock",
    "Correlate",
    "Destination",
    "Gateway",
    "Kafka",
    "Lake",
    "Local",
    "Log",
    "Metrics",
    "Persist",
    "PublishRule",
    "Query",
    "QueueJob",
    "Quota",
    "RequiredRole",
    "RouteSettings",
    "Settings",
    "Settle",
    "Spark",
    "Twin",
    "load",
]

_MODULES = {
    "Destination": "lake",
    "Gateway": "gateway",
    "Kafka": "kafka",
    "Lake": "lake",
    "Log": "telemetry",
    "Metrics": "telemetry",
    "Persist": "persist",
    "PublishRule": "persist",
    "Quota": "quotas",
    "RouteSettings": "routes",
    "load": "loading",
}
"""The modules of the names that are not in ``model``."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used for the first time (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'model')}"), name)
