"""Every setting, once: frozen typed values, read from ``conf/ackstream.toml`` and the environment."""

from ackstream.settings.gateway import Gateway
from ackstream.settings.loading import load
from ackstream.settings.model import (
    Archive,
    Clock,
    Correlate,
    Destination,
    Kafka,
    Lake,
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

__all__ = [
    "Archive",
    "Clock",
    "Correlate",
    "Destination",
    "Gateway",
    "Kafka",
    "Lake",
    "Local",
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
