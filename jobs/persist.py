"""spark-submit entry point: write publishers' messages to their table, and acknowledge them."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.jobs.persist import job
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.offsets import committer
from ackstream.spark.session import session


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, job.TOPICS)
        persist = job.start(session(settings, "ackstream-persist"), settings)
        with committer(settings.kafka, persist, settings.persist.group):
            persist.awaitTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
