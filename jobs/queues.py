"""spark-submit entry point: serve the work queues. Prefer ``ackstream submit queues``."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.jobs.queues.job import TOPICS, running
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.session import session


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
