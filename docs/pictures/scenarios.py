"""A small scenario for each guide: the pictures show what its clients and the tables report.

``python -m docs.pictures.scenarios [NAME…]`` runs them on the real system. Times are seconds since the first event.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable

from docs.pictures import edges, messages, requests
from docs.pictures.drawing import Picture, store
from docs.pictures.running import Run, running

THINGS = ("correlate", "archive", "twin")
REQUESTS = ("correlate", "archive")
MESSAGES = ("persist", "settle", "queues", "query")
SCENARIOS: dict[str, tuple[Callable[[Run], Picture], tuple[str, ...]]] = {
    "orders": (requests.orders, REQUESTS),
    "send-a-command": (requests.send_a_command, REQUESTS),
    "share-work": (messages.share_work, MESSAGES),
    "who-has-finished": (messages.who_has_finished, MESSAGES),
    "publish-safely": (messages.publish_safely, MESSAGES),
    "query-messages": (messages.query_messages, MESSAGES),
    "asyncio": (requests.progress, REQUESTS),
    "other-languages": (requests.other_languages, REQUESTS),
    "request-life": (requests.request_life, REQUESTS),
    "connectivity": (edges.connectivity, REQUESTS),
    "spark-jobs": (edges.spark_jobs, REQUESTS),
    "subscribers": (edges.subscribers, THINGS),
    "gateway": (edges.gateway, THINGS),
    "gateway-operate": (edges.gateway_operate, THINGS),
    "testing": (requests.testing, ()),
}
"""The scenarios by the names of their pictures, and the jobs that run meanwhile."""


def main(names: list[str]) -> None:
    """Run the scenarios of these names, all by default, and draw them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = {name: SCENARIOS[name] for name in names or SCENARIOS}
    failed = []
    for jobs in sorted({jobs for _, jobs in chosen.values()}):
        with running(jobs) as system:
            for name, (scenario, needed) in chosen.items():
                if needed != jobs:
                    continue
                try:
                    store({name: scenario(system.again())})
                except Exception:  # noqa: BLE001 - the others are drawn
                    traceback.print_exc()
                    failed.append(name)
    if failed:
        sys.exit(f"Not drawn: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
