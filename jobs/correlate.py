"""spark-submit entry point: join acknowledgements to requests. Prefer ``ackstream submit correlate``."""

from __future__ import annotations

import sys

from ackstream.correlation.service import run
from ackstream.errors import AckstreamError
from ackstream.session import session
from ackstream.settings import load


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        spark = session(settings, "ackstream-correlate")
        run(spark, settings)
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
