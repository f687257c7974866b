"""spark-submit entry point: keep the things and answer twin commands. Prefer ``ackstream submit twin``."""

from ackstream.jobs.twin.job import INDEX, JOB
from ackstream.spark.job import main

if __name__ == "__main__":
    main(JOB, INDEX)
