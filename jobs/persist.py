"""spark-submit entry point: store and acknowledge publishers' messages. Prefer ``ackstream submit persist``."""

from ackstream.jobs.persist.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
