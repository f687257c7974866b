"""What one client has not read: in order, and within limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway import unread
from ackstream.gateway.unread import UnreadMessages

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MAX_WAITING_CHARACTERS", 100)
    monkeypatch.setattr(unread, "ROOM_CHARACTERS", 50)


def run(story: Callable[[UnreadMessages, list[str]], Any]) -> list[str]:
    """Return how often the client was cut off."""

    async def go() -> list[str]:
        cut: list[str] = []
        await story(UnreadMessages(lambda: cut.append("cut")), cut)
        return cut

    return asyncio.run(go())


def made(text: str | None, when: asyncio.Event | None = None) -> asyncio.Task[str | None]:
    async def make() -> str | None:
        if when is not None:
            await when.wait()
        return text

    return asyncio.get_running_loop().create_task(make())


def test_a_text_that_is_made_later_counts_once_it_is_there() -> None:
    async def story(messages: UnreadMessages, cut: list[str]) -> None:
        for _ in range(3):
            messages.put(made("x" * 40))
        assert cut == []
        await asyncio.sleep(0.01)

    assert run(story) == ["cut"]


def test_a_text_that_was_taken_before_it_was_made_does_not_count() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        when = asyncio.Event()
        for _ in range(9):
            messages.put(made("x" * 60, when))
            assert isinstance(await messages.take(), asyncio.Task)
        messages.put(made(None))
        when.set()
        await asyncio.sleep(0.01)
        await messages.room()

    assert run(story) == []


def test_there_is_room_once_texts_that_were_made_are_taken() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        messages.put(made("x" * 60))
        await asyncio.sleep(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(messages.room(), 0.01)
        await messages.take()
        await messages.room()

    assert run(story) == []


def test_one_that_fails_to_be_made_is_reported_as_it_is_sent() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        async def broken() -> str:
            raise LookupError("oops")

        messages.put(asyncio.get_running_loop().create_task(broken()))
        await asyncio.sleep(0.01)
        with pytest.raises(LookupError):
            await messages.send_all(lambda _: asyncio.sleep(0))

    assert run(story) == []
