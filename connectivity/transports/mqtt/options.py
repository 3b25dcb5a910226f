"""The `specificConfig` of MQTT connections.

Values are texts. Durations are a number with a unit (`30s`, `2m`, `1.5h`); without a unit they are milliseconds, so
`"keepAlive": "30"` is rounded to 0 s, which turns the keep-alive off. Booleans may be written as `true`, `yes`, `on` and
`false`, `no`, `off`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from connectivity.config.quantities import WHOLE
from connectivity.transports.base import SpecificConfig
from connectivity.transports.mqtt.topics import MAX_STRING, text_fault, topic_fault

MICROSECONDS = {
    "ns": 0.001,
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
LONG_NAMES = {"nano": "ns", "micro": "us", "milli": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
"""Short unit of each long one; long ones may end in `s`, and the first three in `second` or `seconds`."""

SHORTEST_REDELIVERY_DELAY = timedelta(seconds=1)
LONGEST_KEEP_ALIVE = timedelta(seconds=65535, microseconds=999_999)

_UNITS = (*MICROSECONDS, *(f"{name}(?:s|seconds?)?" for name in LONG_NAMES))
_DURATION = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*+([a-zA-Z]*)\s*+", re.ASCII)


def read_duration(value: object) -> object:
    """Read `30s`, `2 minutes` or `1500` (milliseconds) as timedelta. Raises ValueError for other texts."""
    if not isinstance(value, str):
        return value
    if (shape := _DURATION.fullmatch(value)) is None:
        raise ValueError("a duration such as 30s, 2m or 500ms")
    unit = _short_unit(shape[2])
    if unit not in MICROSECONDS:
        raise ValueError(f"a duration in one of the units {', '.join(MICROSECONDS)}")
    try:
        return timedelta(microseconds=float(shape[1]) * MICROSECONDS[unit])
    except OverflowError:
        raise ValueError("a shorter duration") from None


def _short_unit(unit: str) -> str:
    if not unit:
        return "ms"
    if unit in MICROSECONDS:
        return unit
    singular = unit.removesuffix("s")
    return LONG_NAMES.get(singular) or LONG_NAMES.get(singular.removesuffix("second"), unit)


def _read_bool(value: object) -> object:
    if isinstance(value, str):
        if value in ("true", "yes", "on"):
            return True
        if value in ("false", "no", "off"):
            return False
        raise ValueError("true or false")
    return value


def _check_keep_alive(value: timedelta) -> timedelta:
    if value > LONGEST_KEEP_ALIVE:
        raise ValueError("a keep-alive from 0s to 65535s")
    return value


def _apply_minimum_delay(value: timedelta) -> timedelta:
    return max(value, SHORTEST_REDELIVERY_DELAY)


def _check_topic(value: str) -> str:
    if (fault := topic_fault(value)) is not None:
        raise ValueError(f"a topic without wildcards; this topic has {fault}")
    return value


def _check_text(value: str) -> str:
    if (fault := text_fault(value)) is not None:
        raise ValueError(f"printable text of up to 65535 bytes; this text has {fault}")
    return value


def _check_size(value: str) -> str:
    if (size := len(value.encode(errors="replace"))) > MAX_STRING:
        raise ValueError(f"up to {MAX_STRING} bytes of UTF-8; this value has {size} bytes")
    return value


Switch = Annotated[
    bool, BeforeValidator(_read_bool, json_schema_input_type=Literal["true", "false", "yes", "no", "on", "off"])
]
DurationForm = Annotated[str, Field(pattern=rf"^\s*[0-9]{{1,15}}(?:\.[0-9]{{1,9}})?\s*(?:{'|'.join(_UNITS)})?\s*$")]
"""How a duration is written."""

Duration = Annotated[timedelta, BeforeValidator(read_duration, json_schema_input_type=DurationForm)]
ClientId = Annotated[str, AfterValidator(_check_text)]


class Options(SpecificConfig):
    """The options in `specificConfig`, for MQTT 3.1.1 and MQTT 5 alike."""

    client_id: ClientId | None = Field(
        default=None,
        description="Client ID. Absent: the connection's ID. Empty: the broker chooses one, which requires `cleanSession`.",
        examples=["depot-7"],
    )
    publisher_id: ClientId | None = Field(
        default=None,
        description="Client ID of the separate publisher. Absent: the client ID followed by `p`.",
        examples=["depot-7-out"],
    )
    separate_publisher_client: Switch = Field(
        default=False,
        description="Publish through a second link, so that a reconnect for redelivery does not interrupt responses.",
        examples=["true"],
    )
    clean_session: Switch = Field(
        default=False,
        description="Start without the session that the broker may have kept: messages that were sent while the "
        "client was disconnected are lost.",
        examples=["true"],
    )
    reconnect_for_redelivery: Switch = Field(
        default=False,
        description="Reconnect after a delivery was requeued, so that the broker redelivers it soon and not only after the "
        "next lost connection. Useful with `cleanSession` `false` and QoS 1.",
        examples=["true"],
    )
    reconnect_for_redelivery_delay: Annotated[Duration, AfterValidator(_apply_minimum_delay)] = Field(
        default=timedelta(seconds=10),
        description="Delay before that reconnect, at least 1 s. Applies only if `reconnectForRedelivery` is `true`.",
        examples=["5s"],
    )
    keep_alive: Annotated[Duration, AfterValidator(_check_keep_alive)] = Field(
        default=timedelta(seconds=60),
        description="Keep-alive interval in whole seconds from 0 (off) to 65535. A unit is required: a number without a "
        "unit is milliseconds, so `30` turns the keep-alive off.",
        examples=["30s"],
    )
    last_will_topic: Annotated[str, AfterValidator(_check_topic)] | None = Field(
        default=None,
        description="Topic of the last will: the message that the broker publishes if this client is lost.",
        examples=["status/depot-7"],
    )
    last_will_qos: Annotated[int, Field(ge=0, le=2), WHOLE] = Field(
        default=0, description="QoS of the last will.", examples=["1"]
    )
    last_will_retain: Switch = Field(
        default=False, description="Whether the broker retains the last will for later subscribers.", examples=["true"]
    )
    last_will_message: Annotated[str, AfterValidator(_check_size)] = Field(
        default="", description="Payload of the last will.", examples=["offline"]
    )
