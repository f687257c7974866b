"""What attackers do to a gateway, as a process of its own: ``python -m tests.harness.attacks PORT``.

It prints what came of it as JSON. Attackers have machines of their own: here they get the processors that nobody else
needs, so that it is the gateway that is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from typing import TypeAlias

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.protocol import State

from tests.harness.gateway import LAMP
from tests.harness.waiting import PATIENCE_SECONDS

Connection: TypeAlias = "tuple[asyncio.StreamReader, asyncio.StreamWriter]"

HALF_OPEN, GUESSES, SOCKETS, GUESSERS = 100, 1_000, 1_000, 250
GET = f"GET {LAMP} HTTP/1.1\r\nhost: localhost\r\n"


def authorization(name: str, password: str | None = None) -> str:
    return "Basic " + b64encode(f"{name}:{f'of {name}' if password is None else password}".encode()).decode()


class Attacks:
    """All at once, each until it is over; what came of them is counted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.found: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(self._half_open(), self._guess(), self._filters(), self._sockets())

    async def _open(self, sent: str) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent.encode())
        await writer.drain()
        return reader, writer

    async def _ask(self, sent: str, connection: Connection | None = None) -> tuple[str, Connection]:
        """Send a request; return the head of the answer, and the connection, a new one where the gateway closed it."""
        while True:
            try:
                if connection is None:
                    connection = await self._open(sent)
                else:
                    connection[1].write(sent.encode())
                return (await connection[0].readuntil(b"\r\n\r\n")).decode().lower(), connection
            except (asyncio.IncompleteReadError, ConnectionError):
                # on a busy machine this program may be so slow that its connections are closed as idle ones
                connection = None

    async def _half_open(self) -> None:
        """Connections without a request, with a part of a head, with a part of a body."""
        own = f"authorization: {authorization('mallory')}\r\ncontent-type: application/json\r\n"
        body = f"PUT {LAMP} HTTP/1.1\r\nhost: localhost\r\n{own}content-length: 9\r\n\r\n{{"
        heads = [*[""] * (HALF_OPEN // 4), *[f"{GET}x-a: "] * (HALF_OPEN // 2)]
        opened = await asyncio.gather(*(self._open(sent) for sent in heads))
        bodies = await asyncio.gather(*(self._open(body) for _ in range(HALF_OPEN - len(heads))))
        for reader, writer in opened:
            assert await reader.read() == b""
            writer.close()
            self.found["half-open ended"] += 1
        for _, writer in bodies:
            writer.close()

    async def _guess(self) -> None:
        """Wrong passwords of a user, over connections that stay open."""
        numbers = iter(range(GUESSES))

        async def guess() -> None:
            connection = await self._open("")
            for number in numbers:
                sent = f"{GET}authorization: {authorization('eve', f'guess {number}')}\r\n\r\n"
                head, connection = await self._ask(sent, connection)
                await connection[0].readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
                self.found[f"guess {head.split(' ', 2)[1]}"] += 1
            connection[1].close()

        await asyncio.gather(*(guess() for _ in range(GUESSERS)))

    async def _filters(self) -> None:
        """Filters of 5 MB in messages and bodies, and the dearest that are accepted."""
        url, own = f"ws://127.0.0.1:{self.port}/ws/2", {"authorization": authorization("mallory")}
        large = f"or({','.join(['eq(attributes/a,1)'] * 260_000)})"
        assert len(large) > 4_900_000
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_SECONDS) as client:
            for _ in range(10):
                with suppress(ConnectionClosed):
                    async with connect(url, additional_headers=own) as socket:
                        await socket.send(f"START-SEND-EVENTS?filter={large}")
                        await socket.recv()
                        self.found["5 MB accepted"] += 1
                with suppress(httpx.WriteError):
                    sent = await client.post("/api/2/search/things", data={"filter": large}, headers=own)
                    self.found[f"5 MB form {sent.status_code}"] += 1
                async with connect(url, additional_headers=own) as socket:
                    await socket.send(f"START-SEND-EVENTS?filter={large[:990_000]}")
                    self.found[f"1 MB message {json.loads(await socket.recv())['status']}"] += 1
                    deep = f'like(attributes/a,"{"*a?" * 16}")'
                    await socket.send(f"START-SEND-EVENTS?filter=or({','.join([deep] * 120)})")
                    self.found[f"dear {await socket.recv()}"] += 1

    async def _sockets(self) -> None:
        """As many WebSockets of one user as there can be, all open at a time."""
        url, own = f"ws://127.0.0.1:{self.port}/ws/2", {"authorization": authorization("eve")}
        opened: list[ClientConnection] = []

        async def one() -> None:
            try:
                opened.append(await connect(url, additional_headers=own, open_timeout=None))
            except InvalidStatus as refused:
                self.found[f"socket {refused.response.status_code}"] += 1
            except (InvalidMessage, ConnectionError):
                # closed as an idle one, see _ask
                self.found["socket closed"] += 1

        for _ in range(SOCKETS // 50):
            await asyncio.gather(*(one() for _ in range(50)))
            # on a busy machine the first ones may have ended before the last are opened
            open_now = sum(socket.state is State.OPEN for socket in opened)
            self.found["sockets at a time"] = max(open_now, self.found["sockets at a time"])
        self.found["socket 101"] = len(opened)
        await asyncio.gather(*(socket.close() for socket in opened))


if __name__ == "__main__":
    os.nice(10)
    attacks = Attacks(int(sys.argv[1]))
    asyncio.run(attacks.run())
    sys.stdout.write(json.dumps(attacks.found))
