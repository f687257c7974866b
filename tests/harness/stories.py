"""Tests that mostly wait: they run at once on one system, and each is reported by its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


class Stories(dict[str, "Callable[[Any], None]"]):
    """The stories of a module by name; a decorator adds one."""

    def __call__(self, story: Callable[[Any], None]) -> Callable[[Any], None]:
        self[story.__name__] = story
        return story

    @contextmanager
    def running(self, system: Any) -> Iterator[dict[str, Future[None]]]:
        """Run all of them, each in a thread; what one raises is in its future."""
        with ThreadPoolExecutor(len(self)) as pool:
            yield {name: pool.submit(story, system) for name, story in self.items()}
