"""spark-submit entry point: keep the things, and answer twin commands. Prefer ``ackstream submit twin``."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.jobs.twin.job import TOPICS, running
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.session import session


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, TOPICS)
        spark = session(settings, "ackstream-twin")
        with running(spark, settings):
            # one that ends ends the job: started again, both go on where they were
            spark.streams.awaitAnyTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
