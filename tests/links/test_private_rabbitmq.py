"""The private RabbitMQ works as documented, so that tests of loss test only the service."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.brokers import BrokerFailed, BrokerMissing, is_listening
from tests.support.brokers import rabbitmq as module
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.bare_amqp import BareAmqpClient

pytestmark = pytest.mark.broker("rabbitmq")


@pytest.mark.soak(shard="brokers")
async def test_a_broker_that_was_stopped_or_killed_starts_again_at_its_port_with_its_messages(
    own_rabbitmq: RabbitMQ,
) -> None:
    broker, port = own_rabbitmq, own_rabbitmq.port
    async with BareAmqpClient(broker.uri()) as bare_client:
        await bare_client.queue("kept")
        await bare_client.send("kept", [b"1", b"2"])
    for end in (broker.stop, broker.kill):
        await asyncio.to_thread(end)
        assert not is_listening(broker.host, port)
        assert "stopped" in repr(broker)
        await asyncio.to_thread(broker.start_again)
        assert (broker.port, is_listening(broker.host, port)) == (port, True)
    async with BareAmqpClient(broker.uri()) as bare_client:
        assert (await bare_client.queue("kept")).declaration_result.message_count == 2


def test_an_unknown_control_command_raises_an_error(rabbitmq: RabbitMQ) -> None:
    assert "fleet" in rabbitmq.control("list_vhosts").split()
    with pytest.raises(BrokerFailed, match="no_such_command"):
        rabbitmq.control("no_such_command")


def test_a_configuration_that_the_broker_refuses_is_shown_with_its_message() -> None:
    with pytest.raises(BrokerFailed, match="no_such_option"):
        RabbitMQ.start(config_lines=["no_such_option = 1"])


def test_a_missing_program_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "docker_answers", lambda: False)
    monkeypatch.setattr(module, "SEARCHED", "/nowhere")
    with pytest.raises(BrokerMissing, match="make install"):
        RabbitMQ.start()
