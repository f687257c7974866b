"""spark-submit entry point: serve the work queues. Prefer ``ackstream submit queues``."""

from ackstream.jobs.queues.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
