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


class TargetModule(NamedTuple):
    """The module of a target, and the packages whose coverage guides the fuzzer."""

    module: str
    followed: tuple[str, ...]


TARGETS = {
    "rsio-frames": TargetModule("reactive_streams_io", _RSIO),
    "rsio-names": TargetModule("reactive_streams_io", _RSIO),
    "rsio-endpoints": TargetModule("reactive_streams_io", _RSIO),
    "rsio-sessions": TargetModule("reactive_streams_io", (*_RSIO, "connectivity.sessions")),
    "ditto": TargetModule("messages", ("mappings.ditto", "mappings.mappers.ditto", *_MODEL)),
    "streamr": TargetModule("messages", ("mappings.streamr", "mappings.streams", *_MODEL)),
    "mappers": TargetModule("messages", ("mappings", "mappings.mappers")),
    "placeholders": TargetModule("texts", ("mappings.placeholders", "mappings.model.json_pointer")),
    "functions": TargetModule("texts", ("mappings.placeholders", "mappings.model.json_pointer")),
    "pointers": TargetModule("texts", _MODEL),
    "fields": TargetModule("texts", _MODEL),
    "rql": TargetModule("filters", _RQL),
    "searches": TargetModule("filters", (*_RQL, "spark_store.search.aggregation")),
    "amqp-frames": TargetModule("amqp", _AMQP),
    "amqp-properties": TargetModule("amqp", _AMQP),
    "mqtt-packets": TargetModule("mqtt", (*_MQTT, "paho.mqtt.client", "paho.mqtt.properties", "paho.mqtt.reasoncodes")),
    "mqtt-topics": TargetModule("mqtt", _MQTT),
    "kafka": TargetModule("kafka", ("connectivity.transports.kafka",)),
    "websocket": TargetModule("listeners", ("connectivity.transports", "websockets.http11", "mappings.streamr.frames")),
    "tcp": TargetModule("listeners", ("connectivity.transports", *_RSIO)),
    "documents": TargetModule("documents", ("connectivity.config",)),
    "connections": TargetModule(
        "documents",
        ("connectivity.validation", "connectivity.connections", "connectivity.security", "mappings.options"),
    ),
    "policies": TargetModule("twins", _TWINS),
    "things": TargetModule("twins", _TWINS),
    "delete-patterns": TargetModule("twins", ("spark_store.history.replay",)),
}
"""The targets by name, which is also the name of the corpus."""


def load(name: str) -> Target:
    """Import the module of a target, and return the target."""
    targets: dict[str, Target] = importlib.import_module(f"tests.fuzzing.{TARGETS[name].module}").TARGETS
    return targets[name]
