"""The list of targets: the module of each one, and the code whose coverage guides its fuzzer.

The module of a target is imported only when it runs, because the fuzzer must instrument the followed code at its
import.
"""

from __future__ import annotations

import importlib
import os
from typing import NamedTuple

from tests.fuzzing.target import Target

MINUTES = float(os.environ.get("MINUTES", "60"))
"""How long `make soak` runs each target, in minutes."""

_RSIO = ("mappings.reactive_streams_io",)
_MODEL = ("mappings.model", "mappings.ids", "mappings.timestamps")
_RQL = ("spark_store.rql", "mappings.model.json_pointer")
_TWINS = ("connectivity.twins", "connectivity.authorization", "spark_store.history.replay", "mappings.model")
_AMQP = ("connectivity.transports.amqp",)
_MQTT = ("connectivity.transports.mqtt",)


class Place(NamedTuple):
    """The module of a target, and the packages whose coverage guides the fuzzer."""

    module: str
    followed: tuple[str, ...]


TARGETS = {
    "rsio-frames": Place("reactive_streams_io", _RSIO),
    "rsio-names": Place("reactive_streams_io", _RSIO),
    "rsio-endpoints": Place("reactive_streams_io", _RSIO),
    "rsio-sessions": Place("reactive_streams_io", (*_RSIO, "connectivity.sessions")),
    "ditto": Place("messages", ("mappings.ditto", "mappings.mappers.ditto", *_MODEL)),
    "streamr": Place("messages", ("mappings.streamr", "mappings.streams", *_MODEL)),
    "mappers": Place("messages", ("mappings", "mappings.mappers")),
    "placeholders": Place("texts", ("mappings.placeholders", "mappings.model.json_pointer")),
    "functions": Place("texts", ("mappings.placeholders", "mappings.model.json_pointer")),
    "pointers": Place("texts", _MODEL),
    "fields": Place("texts", _MODEL),
    "rql": Place("filters", _RQL),
    "searches": Place("filters", (*_RQL, "spark_store.search.aggregation")),
    "amqp-frames": Place("amqp", _AMQP),
    "amqp-properties": Place("amqp", _AMQP),
    "mqtt-packets": Place("mqtt", (*_MQTT, "paho.mqtt.client", "paho.mqtt.properties", "paho.mqtt.reasoncodes")),
    "mqtt-topics": Place("mqtt", _MQTT),
    "kafka": Place("kafka", ("connectivity.transports.kafka",)),
    "websocket": Place("listeners", ("connectivity.transports", "websockets.http11", "mappings.streamr.frames")),
    "tcp": Place("listeners", ("connectivity.transports", *_RSIO)),
    "documents": Place("documents", ("connectivity.config",)),
    "connections": Place(
        "documents",
        ("connectivity.validation", "connectivity.connections", "connectivity.security", "mappings.options"),
    ),
    "policies": Place("twins", _TWINS),
    "things": Place("twins", _TWINS),
    "delete-patterns": Place("twins", ("spark_store.history.replay",)),
}
"""The targets by name, which is also the name of the corpus."""


def load(name: str) -> Target:
    """Import the module of a target, and return the target."""
    targets: dict[str, Target] = importlib.import_module(f"tests.fuzzing.{TARGETS[name].module}").TARGETS
    return targets[name]
