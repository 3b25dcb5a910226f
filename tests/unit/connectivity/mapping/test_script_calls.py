"""The queue of calls to the script process, and which call fails when the process ends."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from connectivity.mapping.script_calls import WINDOW, Calls, PendingCall
from connectivity.mapping.script_protocol import (
    LENGTH,
    BadFrame,
    Call,
    CallFailure,
    CallResult,
    Load,
    Order,
    WorkerReady,
)

SCRIPTS = Load(1, ("a",), ())


class Conversation:
    """The calls of one connection, the names of sent ones, and their results."""

    def __init__(self, *names: str, is_ready: bool = True) -> None:
        self.calls = Calls()
        self.futures: dict[str, asyncio.Future[CallResult | CallFailure]] = {}
        for name in names:
            self.add(name)
        if is_ready:
            self.calls.handle_answer(WorkerReady())

    def add(self, name: str, scripts: Load = SCRIPTS) -> asyncio.Future[CallResult | CallFailure]:
        future = self.futures[name] = asyncio.get_running_loop().create_future()
        self.calls.add(PendingCall(scripts, Call(scripts.key, "incoming", name), future))
        return future

    @property
    def answers(self) -> list[tuple[str, CallResult | CallFailure]]:
        return [(name, it.result()) for name, it in self.futures.items() if it.done() and not it.cancelled()]

    def sent(self) -> list[str]:
        """Return the arguments that are written now; loads as `+key`."""
        data, orders = self.calls.send(), []
        while data:
            length = int.from_bytes(data[:LENGTH], "big")
            order = msgspec.msgpack.decode(data[LENGTH : LENGTH + length], type=Order)
            orders.append(order.argument if isinstance(order, Call) else f"+{order.key}")
            data = data[LENGTH + length :]
        return orders


async def test_nothing_is_sent_before_the_process_is_ready() -> None:
    conversation = Conversation("a", is_ready=False)
    assert conversation.sent() == []
    conversation.calls.handle_answer(WorkerReady())
    assert conversation.sent() == ["+1", "a"]


async def test_scripts_are_sent_once_to_each_process() -> None:
    conversation = Conversation("a", "b")
    conversation.add("c", Load(2, ("b",), ()))
    assert conversation.sent() == ["+1", "a", "b", "+2", "c"]
    conversation.calls.process_ended("killed", is_to_blame=False)
    conversation.calls.handle_answer(WorkerReady())
    assert conversation.sent() == ["+1", "a", "b", "+2", "c"]


async def test_no_more_calls_than_the_window_are_sent() -> None:
    conversation = Conversation(*map(str, range(WINDOW + 2)))
    assert len(conversation.sent()) == WINDOW + 1
    conversation.calls.handle_answer(CallResult("[]"))
    assert conversation.sent() == [str(WINDOW)]


async def test_answers_belong_to_the_calls_in_their_order() -> None:
    conversation = Conversation("a", "b")
    conversation.sent()
    conversation.calls.handle_answer(CallResult("1"))
    conversation.calls.handle_answer(CallFailure("2"))
    assert conversation.answers == [("a", CallResult("1")), ("b", CallFailure("2"))]
    assert not conversation.calls


async def test_a_call_that_ended_the_process_fails_and_the_others_are_sent_again_in_order() -> None:
    conversation = Conversation("a", "b", "c")
    conversation.sent()
    conversation.add("d")
    conversation.calls.process_ended("too long", is_to_blame=True)
    assert conversation.answers == [("a", CallFailure("too long"))]
    conversation.calls.handle_answer(WorkerReady())
    assert conversation.sent() == ["+1", "b", "c", "d"]


async def test_a_call_is_tried_twice_if_the_process_ended_for_another_reason() -> None:
    conversation = Conversation("a", "b")
    for _ in range(2):
        assert conversation.answers == []
        conversation.sent()
        conversation.calls.process_ended("killed", is_to_blame=False)
        conversation.calls.handle_answer(WorkerReady())
    assert conversation.answers == [("a", CallFailure("killed"))]
    assert conversation.sent() == ["+1", "b"]


async def test_a_process_that_never_was_ready_fails_every_call() -> None:
    conversation = Conversation("a", "b", is_ready=False)
    conversation.calls.process_ended("no such file", is_to_blame=False)
    assert [name for name, _ in conversation.answers] == ["a", "b"]
    assert not conversation.calls


async def test_a_cancelled_call_is_not_sent_and_its_answer_is_ignored() -> None:
    conversation = Conversation("a")
    conversation.sent()
    conversation.add("b").cancel()
    conversation.add("c")
    assert conversation.sent() == ["c"]
    conversation.calls.handle_answer(CallResult("1"))
    conversation.calls.handle_answer(CallResult("2"))
    assert conversation.answers == [("a", CallResult("1")), ("c", CallResult("2"))]


async def test_an_answer_without_a_call_is_a_bad_frame() -> None:
    conversation = Conversation()
    with pytest.raises(BadFrame):
        conversation.calls.handle_answer(CallResult("[]"))
    with pytest.raises(BadFrame):
        conversation.calls.handle_answer(WorkerReady())


async def test_the_process_is_busy_until_it_is_ready_and_while_calls_are_sent() -> None:
    conversation = Conversation(is_ready=False)
    assert conversation.calls.is_working
    conversation.calls.handle_answer(WorkerReady())
    assert not conversation.calls.is_working
    conversation.add("a")
    conversation.sent()
    assert conversation.calls.is_working
