"""The transport packages are the registry of connection types."""

from __future__ import annotations

import pytest

from connectivity.transports import connection_types, load_connection_type


def test_every_file_of_the_folder_is_a_connection_type() -> None:
    assert {"mqtt", "mqtt-5", "amqp-091", "kafka"} <= set(connection_types())


@pytest.mark.parametrize("name", connection_types())
def test_a_broker_is_called_like_its_file(name: str) -> None:
    assert load_connection_type(name).name == name


def test_an_unknown_type_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(LookupError, match="did you mean amqp-091"):
        load_connection_type("amqp-91")
