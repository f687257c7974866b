"""spark-submit entry point: carry out commands over the messages. Prefer ``ackstream submit query``."""

from ackstream.jobs.query.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
