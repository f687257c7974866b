"""spark-submit entry point: join acknowledgements to requests. Prefer ``ackstream submit correlate``."""

from ackstream.jobs.correlate.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
