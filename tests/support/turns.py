"""Counts the turns of the event loop, to see in which of them something happens."""

from __future__ import annotations

import asyncio


class Turns:
    """The turns of the running event loop since this was made."""

    def __init__(self) -> None:
        self.count = 0
        self._tick()

    def _tick(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._tick)
