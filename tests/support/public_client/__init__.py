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
"""An event of a client: `event`, `as` for the subscription, and further members."""


class ClientMissing(RuntimeError):
    """Node or the clients are not installed; the message has the command that installs them."""


def node() -> str:
    """Return the path of Node. Raises ClientMissing."""
    if (program := shutil.which("node")) is None:
        raise ClientMissing("no program node on the path; `make install` brings it")
    if not _INSTALLED.is_dir():
        raise ClientMissing(f"no clients in {_INSTALLED}; `make install` brings them")
    return program


def node_path(version: str) -> str:
    """Return the environment variable NODE_PATH for a client and its packages."""
    return os.pathsep.join(
        map(str, (_INSTALLED / version / "node_modules", _INSTALLED / "node_modules", _HERE / "absent"))
    )


async def run_node(script: Path, *words: str, version: str = "1.0.2") -> Process:
    """Start a Node program that can import a client, with pipes for its streams. Raises ClientMissing."""
    environment = {**os.environ, "NODE_PATH": node_path(version)}
    return await asyncio.create_subprocess_exec(
        node(), str(script), *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )


class PublicClient:
    """A client process. `events` are the client's events so far, in order."""

    def __init__(self, version: str, process: Process) -> None:
        self.version = version
        self.events: list[Happened] = []
        self._process = process
        self._errors = b""

    def __repr__(self) -> str:
        return f"<PublicClient {self.version} {self.events[-8:]} {self._errors[-2000:].decode(errors='replace')}>"

    @classmethod
    @asynccontextmanager
    async def started(cls, version: str, url: str, **options: Any) -> AsyncIterator[Self]:
        """Start a client, which connects at its first subscribe or publish.

        It connects to `url` only: the REST address in its options is unused.
        """
        unsigned = {"publishWithSignature": "never", "verifySignatures": "never"} if version.startswith("1.") else {}
        given = {"url": url, "restUrl": "http://127.0.0.1:9", **unsigned, **options}
        process = await run_node(_HERE / "client.js", str(_INSTALLED), version, json.dumps(given))
        client = cls(version, process)
        listening = [asyncio.create_task(client._listen()), asyncio.create_task(client._read_errors())]
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

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(4096):
            self._errors += text

    async def _do(self, command: str, **words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **words}).encode() + b"\n")
        await self._process.stdin.drain()

    async def connect(self) -> None:
        await self._do("connect")

    async def subscribe(self, name: str, **options: Any) -> None:
        """Subscribe with the client's own options; `name` identifies the subscription in the test."""
        await self._do("subscribe", **{"as": name}, options=options)

    async def unsubscribe(self, name: str) -> None:
        await self._do("unsubscribe", **{"as": name})

    async def publish(self, stream: str, content: Any) -> None:
        await self._do("publish", stream=stream, content=content)

    def happened(self, event: str, name: str | None = None) -> list[Happened]:
        """Return the events of one kind, of one subscription or of the client."""
        return [each for each in self.events if each["event"] == event and each.get("as") == name]

    def course(self, name: str) -> list[str | int]:
        """Return the events of a subscription in order: offsets of messages, and names of other events."""
        of = [each for each in self.events if each.get("as") == name]
        return [each["offset"] if each["event"] == "message" else each["event"] for each in of]

    def offsets(self, name: str) -> list[int]:
        return [each["offset"] for each in self.happened("message", name)]

    def contents(self, name: str) -> list[Any]:
        return [each["content"] for each in self.happened("message", name)]

    async def until(self, condition: Callable[[], object], within: float = PATIENCE) -> None:
        """Wait for a condition. Raises AssertionError with the events, or with the client's own error."""
        try:
            await wait_until(lambda: condition() or self.happened("thrown"), within)
        except TimedOut as error:
            raise AssertionError(f"{error}: {self!r}") from error
        assert not self.happened("thrown"), repr(self)


async def _end(process: Process) -> None:
    """Close the input of a program, which ends it, and kill it if it does not end."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.close()
        await process.stdin.wait_closed()
    try:
        await asyncio.wait_for(process.wait(), ENDED_WITHIN)
    except TimeoutError:
        process.kill()
        await process.wait()
