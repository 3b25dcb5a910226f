"""The live channel and acknowledgements, read: what the vector files do not show."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.ditto.live import status_of
from mappings.mappers.ditto import CODEC
from mappings.model.envelope import Envelope
from mappings.model.signals import Acknowledgement


def acknowledgements(members: str, headers: str = "{}") -> list[Acknowledgement]:
    message = f'{{"topic":"a/b/things/twin/acks","path":"/","headers":{headers},"value":{members}}}'
    signals = CODEC.decode(Envelope(message.encode()), None)
    return [signal for signal in signals if isinstance(signal, Acknowledgement)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((200, 200), (100, 100), (599, 599), (99, None), (600, None), (True, None), ("200", None)),
        *((200.0, 200), (200.5, None), (600.0, None), (-0.0, None), (1e300, None)),
    ],
)
def test_a_status_is_a_number_that_can_be_one(status: Any, expected: int | None) -> None:
    assert status_of(status) == expected


def test_numbers_in_the_payload_of_several_acknowledgements_keep_their_text() -> None:
    (ack,) = acknowledgements('{"acme:stored":{"status":200,"payload":{"a":1.50,"b":[2E3, 9007199254740993]}}}')
    assert ack.value == b'{"a":1.50,"b":[2E3,9007199254740993]}'


def test_a_header_of_one_acknowledgement_replaces_that_of_all_in_another_spelling() -> None:
    shared = '{"Site":"hall","correlation-id":"c"}'
    acks = acknowledgements('{"acme:one":{"status":200,"headers":{"site":"yard"}},"acme:two":{"status":200}}', shared)
    assert [ack.headers for ack in acks] == [
        {"site": "yard", "correlation-id": "c"},
        {"Site": "hall", "correlation-id": "c"},
    ]
