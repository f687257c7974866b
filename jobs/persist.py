"""spark-submit entry point: write publishers' messages to their table, and acknowledge them."""

from __future__ import annotations

import sys

from ackstream.errors import AckstreamError
from ackstream.offsets import committer
from ackstream.publishing.persist import query
from ackstream.session import session
from ackstream.settings import load
from ackstream.topics import prepare


def main() -> None:
    """Parse the settings, build the session, start, await."""
    try:
        settings = load()
        prepare(settings, query.TOPICS)
        persist = query.start(session(settings, "ackstream-persist"), settings)
        with committer(settings.kafka, persist, settings.persist.group):
            persist.awaitTermination()
    except AckstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
