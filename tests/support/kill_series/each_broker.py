"""The parameter `kind` of long tests: each kind of broker, in its shard of the soak tests."""

from __future__ import annotations

import pytest

from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    KafkaKillSeriesBroker,
    Mqtt5KillSeriesBroker,
    MqttKillSeriesBroker,
)

EACH_BROKER = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MqttKillSeriesBroker, marks=pytest.mark.soak(shard="kills-mqtt"), id="mqtt"),
        pytest.param(Mqtt5KillSeriesBroker, marks=pytest.mark.soak(shard="kills-mqtt"), id="mqtt-5"),
        pytest.param(AmqpKillSeriesBroker, marks=pytest.mark.soak(shard="kills-amqp"), id="amqp"),
        pytest.param(KafkaKillSeriesBroker, marks=pytest.mark.soak(shard="kills-kafka"), id="kafka"),
    ],
)
