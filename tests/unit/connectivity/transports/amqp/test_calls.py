"""Ends of a call on aio-pika: a result, a refusal, a timeout, or a lost connection."""

from __future__ import annotations

import asyncio

import pytest
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionClosed,
)

from connectivity.transports.amqp.calls import CallFailed, CallRefused, CallTimedOut, call
from connectivity.transports.amqp.errors import ACCESS_REFUSED, LOCKED, NOT_FOUND, PRECONDITION_FAILED


async def error_of(raised: Exception) -> CallFailed:
    async def work() -> None:
        raise raised

    with pytest.raises(CallFailed) as caught:
        await call(work(), None)
    return caught.value


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ChannelAccessRefused("why"), ACCESS_REFUSED),
        (ChannelNotFoundEntity("why"), NOT_FOUND),
        (ChannelLockedResource("why"), LOCKED),
        (ChannelPreconditionFailed("why"), PRECONDITION_FAILED),
        (ChannelClosed(504, "why"), 504),
    ],
)
async def test_a_refused_call_has_the_code_and_text_of_the_broker(raised: Exception, code: int) -> None:
    error = await error_of(raised)
    assert isinstance(error, CallRefused)
    assert error.reason == (code, "why")


@pytest.mark.parametrize(
    "raised", [ChannelClosed(None, None), ConnectionClosed(320, "why"), ChannelInvalidStateError("closed")]
)
async def test_another_failure_is_no_refusal(raised: Exception) -> None:
    assert type(await error_of(raised)) is CallFailed


async def test_a_call_ends_with_its_patience_or_its_connection() -> None:
    """Also one that swallows its cancellation."""
    never = asyncio.Event()
    canceled = []

    async def ignore_cancel() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            canceled.append(True)
            await never.wait()

    with pytest.raises(CallTimedOut, match="no answer within"):
        await call(ignore_cancel(), 0.01)
    end = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(end.set_result, None)
    with pytest.raises(CallFailed, match="the connection ended"):
        await call(ignore_cancel(), None, end)
    await asyncio.sleep(0)
    assert canceled == [True, True]
    never.set()
    await asyncio.sleep(0)
