"""The folder of brokers is their registry."""

from __future__ import annotations

import pytest

from connectivity.transports import broker_names, load_broker


def test_every_file_of_the_folder_is_a_connection_type() -> None:
    assert {"mqtt", "mqtt-5", "amqp-091", "kafka"} <= set(broker_names())


@pytest.mark.parametrize("name", broker_names())
def test_a_broker_is_called_like_its_file(name: str) -> None:
    assert load_broker(name).name == name


def test_an_unknown_type_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(LookupError, match="did you mean amqp-091"):
        load_broker("amqp-91")
