"""What a process shows its operators: metrics, probes, and its log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ackstream.settings.base import Part
from ackstream.settings.security import is_loopback

Level = Literal["debug", "info", "warning", "error"]


class Metrics(Part):
    """The endpoint with ``/metrics``, ``/health/live`` and ``/health/ready``; ``port`` 0: there is none."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)

    def warning(self) -> str:
        """Return a sentence if other hosts can read it, else an empty text."""
        if not self.port or is_loopback(self.host):
            return ""
        return (
            f"Metrics are served at {self.host}:{self.port} without a login: hosts that reach it can read counts, and"
            " the names of queues, destinations and connections."
        )


class Log(Part):
    """The log of a process, on standard error."""

    format: Literal["text", "json"] = "text"
    level: Level = "info"
