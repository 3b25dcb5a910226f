"""The AMQP client of the tests sends messages without an ID when it is asked to."""

from __future__ import annotations

from aio_pika import Message

from tests.support.clients.amqp import _NamelessMessage


def test_a_nameless_message_leaves_without_the_id_that_the_library_makes_up() -> None:
    nameless, properties = _NamelessMessage(b"{}", reply_to="answers"), Message(b"{}", reply_to="answers").properties
    made_up = nameless.properties
    made_up.message_id = "made up"
    assert made_up.marshal() == properties.marshal()
    assert made_up.message_id == "made up"
