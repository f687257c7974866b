"""spark-submit entry point: serve the work queues. Prefer ``ackstream submit queues``."""

from __future__ import annotations

import sys

from ackstream.delivery.queues.service import TOPICS, running
from ackstream.errors import AckstreamError
from ackstream.session import session
from ackstream.settings import load
from ackstream.topics import prepare


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, TOPICS)
        with running(session(settings, "ackstream-queues"), settings) as query:
            query.awaitTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
