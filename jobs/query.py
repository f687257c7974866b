"""spark-submit entry point: carry out commands over the table of messages. Prefer ``ackstream submit query``."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.jobs.query import job
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.offsets import committer
from ackstream.spark.session import session


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, job.TOPICS)
        query = job.start(session(settings, "ackstream-query"), settings)
        with committer(settings.kafka, query, settings.query.group):
            query.awaitTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
