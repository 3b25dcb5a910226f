"""The settings that a Kafka connection gives its clients."""

from __future__ import annotations

from connectivity.connections.model import Connection
from connectivity.transports.kafka.client_config import consumer_settings
from connectivity.transports.kafka.options import Options


def test_every_consumer_of_every_client_is_a_member_of_its_own() -> None:
    document = {
        "id": "depot-7",
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:9092",
        "specificConfig": {"bootstrapServers": "127.0.0.1:9092"},
        "sources": [{"addresses": ["in"], "authorizationContext": ["lab:all"], "consumerCount": 2}],
        "clientCount": 2,
    }
    connection = Connection.model_validate(document)
    options = Options.model_validate(connection.own_options)
    settings = [
        consumer_settings(connection, options, 1 << 20, client, member) for client in (0, 1) for member in (0, 1)
    ]
    names = [each["group.instance.id"] for each in settings]
    assert names == ["depot-7", "depot-7.0.1", "depot-7.1.0", "depot-7.1.1"]
    assert {each["group.id"] for each in settings} == {"depot-7"}
    assert {(each["queued.max.messages.kbytes"], each["fetch.max.bytes"]) for each in settings} == {(1024, 1 << 20)}
