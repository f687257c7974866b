"""Commands through the gateway at a steady rate, open loop, and how long each waits for its reply."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import httpx

THINGS = 199
ABSENT_EVERY = 20
"""One in this many commands requests an acknowledgement that no party issues: it times out."""
SECONDS, ABSENT_SECONDS = 55, 10
EXPECTED = {True: (408, 424), False: (200,)}
ANSWERS = frozenset().union(*EXPECTED.values())


class Requests:
    """Puts a value of one thing after the other; a thread of its own runs the loop."""

    def __init__(self, port: int, label: str) -> None:
        self._base = f"http://127.0.0.1:{port}/api/2/things/org.acme:lamp-"
        self._label = label
        self.rate = 1.0
        self.sent = 0
        self.open = 0
        self._latencies: list[float] = []
        self._statuses: Counter[int | str] = Counter()
        self._unexpected = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sending, and give up open requests."""
        self._stopped.set()
        self._thread.join()

    def take(self) -> tuple[list[float], Counter[int | str], int]:
        """Return the results since the last call: latencies of complete answers, statuses, unexpected ones."""
        found = self._latencies, self._statuses, self._unexpected
        self._latencies, self._statuses, self._unexpected = [], Counter(), 0
        return found

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        tasks: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        async with httpx.AsyncClient(timeout=SECONDS + 5, limits=limits) as client:
            while not self._stopped.is_set():
                task = asyncio.create_task(self._put(client, self.sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                self.sent += 1
                self.open = len(tasks)
                due += 1 / self.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, client: httpx.AsyncClient, number: int) -> None:
        absent = number % ABSENT_EVERY == 0
        labels = f"twin-persisted,{'app:absent' if absent else self._label}"
        options: dict[str, Any] = {
            "params": {"requested-acks": labels, "timeout": f"{ABSENT_SECONDS if absent else SECONDS}s"},
            "json": {"attributes": {"n": number}},
        }
        began = time.monotonic()
        try:
            status: int | str = (await client.put(f"{self._base}{number % THINGS}", **options)).status_code
        except httpx.HTTPError as error:
            status = type(error).__name__
        self._statuses[status] += 1
        if status not in EXPECTED[absent]:
            self._unexpected += 1
        elif not absent:
            self._latencies.append(time.monotonic() - began)
