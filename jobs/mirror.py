"""spark-submit entry point: copy all messages to the destination its argument names. Prefer ``ackstream submit``."""

from ackstream.jobs.mirror.job import main

if __name__ == "__main__":
    main()
