"""Spark's daemon of Python workers, with the modules of the jobs imported: a worker that it forks imports nothing.

The workers of a query end with it, and most tests start a query.
"""

from __future__ import annotations

from importlib import import_module

from pyspark import daemon

for name in ("pandas", "pyarrow", *(f"ackstream.jobs.{job}.job" for job in ("correlate", "queues", "settle"))):
    import_module(name)

if __name__ == "__main__":
    daemon.manager()
