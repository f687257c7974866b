"""spark-submit entry point: copy all messages to a destination, and tell how far it is. Its name is the argument."""

from __future__ import annotations

import sys
from threading import Event

from ackstream.errors import AckstreamError
from ackstream.jobs.mirror import job
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.session import session


def main() -> None:
    """Parse the settings, build the session, copy."""
    try:
        settings = load()
        destination = job.named(settings, sys.argv[1:])
        prepare(settings, job.TOPICS)
        job.run(session(settings, f"ackstream-mirror-{destination.name}"), settings, destination, Event())
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
