"""spark-submit entry point: write the ledger to the Delta tables. Prefer ``ackstream submit archive``."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.jobs.archive import job
from ackstream.kafka.topics import prepare
from ackstream.settings import load
from ackstream.spark.offsets import committer
from ackstream.spark.session import session


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, ["ledger"])
        query = job.start(session(settings, "ackstream-archive"), settings)
        with committer(settings.kafka, query, settings.archive.group):
            query.awaitTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
