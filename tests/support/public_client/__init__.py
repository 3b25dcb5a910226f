"""Streamr's public clients, unmodified: Node processes that a test controls.

`tools/streamr_client` installs them. Without them, or without Node, the test fails; it is never skipped.

    async with PublicClient.started("0.12.2", wire.url) as client:
        await client.subscribe("a", stream="tank", resend_all=True)
        await client.until(lambda: client.offsets("a") == [1, 2])
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.paths import ROOT
from tests.support.wait import PATIENCE, TimedOut, wait_until

VERSIONS = ("0.9.3", "0.11.2", "0.12.2", "1.0.2")
ENDED_WITHIN = 10.0

_HERE = Path(__file__).parent
_INSTALLED = ROOT / ".run" / "streamr_client"

Happened = dict[str, Any]
"""`event`, `as` for what happened to a subscription, and what the event brings along."""


class ClientMissing(RuntimeError):
    """Node or the installed clients are not there; the message names the command that brings them."""


def node() -> str:
    """The program that runs the clients. Raises ClientMissing."""
    if (program := shutil.which("node")) is None:
        raise ClientMissing("no program node on the path; `make install` brings it")
    if not _INSTALLED.is_dir():
        raise ClientMissing(f"no clients in {_INSTALLED}; `make install` brings them")
    return program


def node_path(version: str) -> str:
    """Where Node finds a client and the packages it comes with, for the environment variable of this name."""
    return os.pathsep.join(
        map(str, (_INSTALLED / version / "node_modules", _INSTALLED / "node_modules", _HERE / "absent"))
    )


async def run_node(script: Path, *words: str, version: str = "1.0.2") -> Process:
    """A Node program that finds a client and the packages it comes with. Has pipes to all sides. Raises ClientMissing."""
    environment = {**os.environ, "NODE_PATH": node_path(version)}
    return await asyncio.create_subprocess_exec(
        node(), str(script), *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )


class PublicClient:
    """One client. `events` grows by itself, in the order in which things happened to the client."""

    def __init__(self, version: str, process: Process) -> None:
        self.version = version
        self.events: list[Happened] = []
        self._process = process
        self._said = b""

    def __repr__(self) -> str:
        return f"<PublicClient {self.version} {self.events[-8:]} {self._said[-2000:].decode(errors='replace')}>"

    @classmethod
    @asynccontextmanager
    async def started(cls, version: str, url: str, **options: Any) -> AsyncIterator[Self]:
        """A client that has been made and not connected: it connects with its first subscription or publication.

        Reaches for nothing but `url`: a REST address that nobody listens at stands in its options.
        """
        unsigned = {"publishWithSignature": "never", "verifySignatures": "never"} if version.startswith("1.") else {}
        given = {"url": url, "restUrl": "http://127.0.0.1:9", **unsigned, **options}
        process = await run_node(_HERE / "client.js", str(_INSTALLED), version, json.dumps(given))
        client = cls(version, process)
        listening = [asyncio.create_task(client._listen()), asyncio.create_task(client._overhear())]
        try:
            await client.until(lambda: client.happened("ready"))
            yield client
        finally:
            await _end(process)
            await asyncio.gather(*listening)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.events.append(json.loads(line))

    async def _overhear(self) -> None:
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(4096):
            self._said += text

    async def _do(self, command: str, **words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **words}).encode() + b"\n")
        await self._process.stdin.drain()

    async def connect(self) -> None:
        await self._do("connect")

    async def subscribe(self, name: str, **options: Any) -> None:
        """Subscribe with the client's own options; `name` is what the test calls it."""
        await self._do("subscribe", **{"as": name}, options=options)

    async def unsubscribe(self, name: str) -> None:
        await self._do("unsubscribe", **{"as": name})

    async def publish(self, stream: str, content: Any) -> None:
        await self._do("publish", stream=stream, content=content)

    def happened(self, event: str, name: str | None = None) -> list[Happened]:
        """The events of one kind, of one subscription or of the client."""
        return [each for each in self.events if each["event"] == event and each.get("as") == name]

    def course(self, name: str) -> list[str | int]:
        """The events of a subscription, in order: messages as their offsets, other events as their words."""
        of = [each for each in self.events if each.get("as") == name]
        return [each["offset"] if each["event"] == "message" else each["event"] for each in of]

    def offsets(self, name: str) -> list[int]:
        return [each["offset"] for each in self.happened("message", name)]

    def contents(self, name: str) -> list[Any]:
        return [each["content"] for each in self.happened("message", name)]

    async def until(self, condition: Callable[[], object], within: float = PATIENCE) -> None:
        """Wait. Raises AssertionError with what has happened so far, or with the error that the client has thrown."""
        try:
            await wait_until(lambda: condition() or self.happened("thrown"), within)
        except TimedOut as error:
            raise AssertionError(f"{error}: {self!r}") from error
        assert not self.happened("thrown"), repr(self)


async def _end(process: Process) -> None:
    """Its input ends, and so does the program; one that does not is ended."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.close()
        await process.stdin.wait_closed()
    try:
        await asyncio.wait_for(process.wait(), ENDED_WITHIN)
    except TimeoutError:
        process.kill()
        await process.wait()
