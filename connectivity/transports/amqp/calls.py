"""Calls on aio-pika: how long to wait for one, and why it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aio_pika.exceptions import ChannelClosed
from aiormq.channel import EXCEPTION_MAPPING

from connectivity.transports.amqp.frames import Reason

T = TypeVar("T")

CODES = {kind: code for code, kind in EXCEPTION_MAPPING.items()}
"""The reply codes that the library turns into exceptions of their own."""


class CallFailed(Exception):
    """A failed call on the library."""


class CallTimedOut(CallFailed):
    """A call on the library that the broker did not answer in time."""


class CallRefused(CallFailed):
    """A call on the library because of which the broker closed the channel."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


async def call(work: Coroutine[Any, Any, T], patience: float | None, end: asyncio.Future[None] | None = None) -> T:
    """Wait for a call on the library, at most `patience` seconds and until `end` is done.

    The library does not end every call with its connection: on Python 3.11 `asyncio.wait_for` loses a cancellation that
    comes together with a result, and the call waits for a reply that cannot come. Raises CallFailed.
    """
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_retrieve)
    try:
        await asyncio.wait((task, end) if end else (task,), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
    if not task.done() and not (end and end.done()):
        raise CallTimedOut(f"no answer within {patience:g} s")
    if not task.done() or task.cancelled():
        raise CallFailed("the connection ended")
    if (error := task.exception()) is not None:
        raise _call_error(error) from error
    return task.result()


def _call_error(error: BaseException) -> CallFailed:
    if isinstance(error, ChannelClosed):
        code, text = (CODES[type(error)], *error.args) if type(error) in CODES else error.args
        if code is not None:  # None: a channel that was closed as asked
            return CallRefused(Reason(code, text))
    return CallFailed(str(error))


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a call that is no longer awaited, since the event loop would log it."""
    if not task.cancelled():
        task.exception()
