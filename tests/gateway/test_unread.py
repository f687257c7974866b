"""What one client has not read: in order, and within limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway import unread
from ackstream.gateway.unread import UnreadMessages, UnreadTotal

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
        await story(UnreadMessages(lambda: cut.append("cut"), UnreadTotal()), cut)
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


def test_of_many_clients_those_that_leave_much_unread_are_cut_off_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MAX_OF_ALL", 200)

    async def go() -> None:
        cut: list[int] = []
        total = UnreadTotal()
        clients = [UnreadMessages(lambda number=number: cut.append(number), total) for number in range(4)]
        for client in clients[:3]:
            client.put("x" * 60)
        clients[3].put("x" * 40)
        assert cut == []
        # one that has little keeps what it gets; one that has much does not
        clients[3].put("x")
        assert cut == []
        clients[0].put("x")
        assert cut == [0]
        clients[0].drop()
        assert total.characters == 161
        clients[1].put("x")
        assert cut == [0]
        for client in clients:
            client.drop()
        assert total.characters == 0

    asyncio.run(go())


def test_what_is_taken_is_no_longer_unread() -> None:
    async def go() -> None:
        total = UnreadTotal()
        client = UnreadMessages(lambda: None, total)
        for message in ("x" * 10, made("x" * 20), made("x" * 30)):
            client.put(message)
        await asyncio.sleep(0.01)
        assert total.characters == 60
        for left in (50, 30, 0):
            await client.take()
            assert total.characters == left

    asyncio.run(go())
