"""spark-submit entry point: settle readers' acknowledgements. Prefer ``ackstream submit settle``."""

from ackstream.jobs.settle.job import JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB)
