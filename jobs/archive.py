"""spark-submit entry point: write the ledger to the Delta tables. Prefer ``ackstream submit archive``."""

from ackstream.jobs.archive.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
