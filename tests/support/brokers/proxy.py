"""A TCP proxy between a client and a broker, which breaks links like a network.

    async with Proxy.to(broker.host, broker.port) as proxy:
        connect(proxy.host, proxy.port)
        proxy.cut()

`cut` resets all links; `stall` stops the data in one direction or both, and keeps the links open, as a dead network does;
`flow` continues. `ProxyThread` is the same for tests without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from tests.support.wait import PATIENCE

CHUNK = 65536


class Proxy:
    """A proxy whose links live until a cut, until one side closes them, or until the proxy is closed."""

    host = "127.0.0.1"

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target, self._wanted_port = target, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._to_broker, self._to_client = asyncio.Event(), asyncio.Event()
        self._to_broker.set()
        self._to_client.set()
        self.port = 0
        self.links = 0
        """The number of links so far."""
        self.attempts: list[float] = []
        """The times of connection attempts, on the monotonic clock."""
        self.is_refusing = False
        self.sent, self.received = 0, 0
        """Bytes from clients to the broker, and from the broker to clients."""
        self.damage: tuple[bytes, bytes] | None = None
        """What to replace in bytes from the broker, and by which bytes of the same length."""
        self._cuts: list[int] = []
        """The values of `sent` at which all links are reset, the next one last."""

    @classmethod
    def to(cls, host: str, port: int, *, at: int = 0) -> Self:
        """Return a proxy to this address; `at` is its own port, or 0 for a free one."""
        return cls((host, port), at)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self._wanted_port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every link, in both directions."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()
        self._pairs.clear()

    def cut_every(self, sent: int, times: int) -> None:
        """Reset all links after each `sent` further bytes from clients, at most `times` times."""
        self._cuts = [self.sent + sent * number for number in range(times, 0, -1)]

    def cut_one(self) -> None:
        """Reset the oldest link in both directions; the other links stay open."""
        self._pairs = [pair for pair in self._pairs if not any(writer.is_closing() for writer in pair)]
        for writer in self._pairs.pop(0):
            writer.transport.abort()
            self._writers.discard(writer)

    def stall(self, *, to_broker: bool = True, to_client: bool = True) -> None:
        """Hold back all further bytes; the links stay open."""
        if to_broker:
            self._to_broker.clear()
        if to_client:
            self._to_client.clear()

    def flow(self) -> None:
        """Forward the held bytes and all further ones."""
        self._to_broker.set()
        self._to_client.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a link until it ends, and leave no socket open."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.attempts.append(time.monotonic())
        with self._kept(writer):
            if not self.is_refusing:
                self.links += 1
                await self._link(reader, writer)
        self._tasks.discard(task)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        with self._kept(far_writer):
            if writer.transport.is_closing():
                # Cut while the link to the broker was being opened.
                return
            self._pairs.append((writer, far_writer))
            await asyncio.gather(
                self._pass_on(reader, far_writer, self._to_broker, is_up=True),
                self._pass_on(far_reader, writer, self._to_client, is_up=False),
            )

    @contextlib.contextmanager
    def _kept(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Register a writer, so that `cut` reaches it, and close it at the end."""
        self._writers.add(writer)
        try:
            yield
        finally:
            writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event, *, is_up: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await gate.wait()
                if is_up:
                    self.sent += len(data)
                else:
                    self.received += len(data)
                    data = data.replace(*self.damage) if self.damage else data
                writer.write(data)
                await writer.drain()
                if self._cuts and self.sent >= self._cuts[-1]:
                    self._cuts.pop()
                    self.cut()
            await gate.wait()
            writer.write_eof()


class ProxyThread:
    """A proxy in a thread; each call returns when its effect is complete."""

    host = Proxy.host

    def __init__(self, host: str, port: int, *, at: int = 0) -> None:
        """`at` is the port of the proxy, or 0 for a free one."""
        self._proxy = Proxy.to(host, port, at=at)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.port = 0

    @property
    def attempts(self) -> list[float]:
        """The times of connection attempts, on the monotonic clock."""
        return list(self._proxy.attempts)

    @property
    def sent(self) -> int:
        """The number of bytes from clients to the broker."""
        return self._proxy.sent

    def refuse(self) -> None:
        """Cut all links, and each new one immediately."""
        self._proxy.is_refusing = True
        self.cut()

    def admit(self) -> None:
        """Accept new links again."""
        self._proxy.is_refusing = False

    def cut(self) -> None:
        self._do(self._proxy.cut)

    def cut_every(self, sent: int, times: int) -> None:
        self._do(partial(self._proxy.cut_every, sent, times))

    def cut_one(self, *, refusing: bool = False) -> None:
        """Cut the oldest link; with `refusing`, refuse new ones until `admit`."""
        self._proxy.is_refusing = refusing
        self._do(self._proxy.cut_one)

    def stall(self, *, to_broker: bool = True, to_client: bool = True) -> None:
        self._do(partial(self._proxy.stall, to_broker=to_broker, to_client=to_client))

    def flow(self) -> None:
        self._do(self._proxy.flow)

    def _do(self, action: Callable[[], None]) -> None:
        async def acted() -> None:
            action()

        asyncio.run_coroutine_threadsafe(acted(), self._loop).result(PATIENCE)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result(PATIENCE)
        self.port = self._proxy.port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(kind, error, trace), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
