"""What ``pip install ackstream`` leaves out, and the one sentence for an import that needs it.

Modules of ackstream import the packages of extras as all others. Where one is not installed, the import raises an error
that names the extra. Imports by other programs fail as they always do.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ackstream.errors import MissingExtraError

if TYPE_CHECKING:
    from types import FrameType

EXTRAS = {
    "cli": ("psutil", "rich", "typer"),
    "tls": ("cryptography",),
    "testing": ("numpy",),
    "spark": ("delta", "pandas", "py4j", "pyarrow", "pyspark", "re2"),
    "lake": ("deltalake", "duckdb"),
    "metrics": ("prometheus_client",),
    "tracing": ("opentelemetry",),
    "gateway": ("anyio", "h11", "jwt", "starlette", "uvicorn"),
    "connect": ("httpx", "paho", "pika"),
    "amqp-10": ("proton",),
}
"""The packages, as they are imported, by the extra to install; of several extras with a package, the one named here."""

_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


_IMPORT = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
"""The modules of the import itself, which have the second name until the first is imported."""


class MissingExtras:
    """The last of ``sys.meta_path``, for imports that no other finder has found; it finds nothing either."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004 - Python's signature
        """Raise for a package of an extra that a module of ackstream imports.

        :raises MissingExtraError: with a sentence that names the extra
        """
        extra = _EXTRA_OF.get(name)
        if extra is None or not (importer := _importer(sys._getframe(1))).startswith(f"{__package__}."):  # noqa: SLF001
            return
        raise MissingExtraError(
            f"The extra {extra} of ackstream is not installed ({importer} needs {name}): run "
            f"`pip install 'ackstream[{extra}]'`.",
            name=name,
        )


def _importer(frame: FrameType | None) -> str:
    """Return the name of the module that imports, above the frames of the import itself."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _IMPORT:
            return name
        frame = frame.f_back
    return ""
