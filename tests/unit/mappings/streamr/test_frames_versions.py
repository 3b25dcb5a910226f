"""The versions that a peer may request."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from mappings.streamr.errors import UnknownVersion
from mappings.streamr.frames import message_version, version_in
from tests.support.table import each_row


@each_row(
    ("query", "version"),
    [
        ("", None),
        ("controlLayerVersion=0&messageLayerVersion=28", 28),
        ("controlLayerVersion=0&messageLayerVersion=29", 29),
        ("messageLayerVersion=29&controlLayerVersion=0&foo=1", 29),
        ("messageLayerVersion=29", None),
        ("controlLayerVersion=1", None),
        ("version=29", None),
        ("protocolVersion=1&payloadVersion=30", None),
        ("%%%=&&", None),
    ],
)
def test_the_query_string_selects_the_message_version(query: str, version: int | None) -> None:
    assert message_version(dict(parse_qsl(query))) == version


@each_row(
    "query",
    [
        *(
            f"controlLayerVersion=0&messageLayerVersion={version}"
            for version in (27, 30, 31, 32, "x", -28, "٢٨", "9" * 99)
        ),
        *(f"controlLayerVersion={layer}&messageLayerVersion=28" for layer in (1, 2, "x", "0x0")),
    ],
)
def test_an_unsupported_version_is_refused_and_the_supported_ones_are_named(query: str) -> None:
    with pytest.raises(UnknownVersion, match="expected 0 and 28, or 0 and 29"):
        message_version(dict(parse_qsl(query)))


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, None),
        ({"streamr-version": "28"}, 28),
        ({"streamr-version": "29"}, 29),
        ({"streamr-version": "30"}, None),
        ({"streamr-version": "-1"}, None),
        ({"streamr-version": "twenty-nine"}, None),
    ],
)
def test_a_request_may_select_the_version_in_a_header(headers: dict[str, str], version: int | None) -> None:
    assert version_in(headers) == version
