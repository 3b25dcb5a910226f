"""The live channel and acknowledgements, read: what the vector files do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mappings.ditto.document import read_message
from mappings.ditto.live import status_of


@pytest.mark.parametrize(
    ("status", "expected"), [(200, 200), (100, 100), (599, 599), (99, None), (600, None), (True, None), ("200", None)]
)
def test_a_status_is_a_number_that_can_be_one(status: Any, expected: int | None) -> None:
    document = read_message(json.dumps({"topic": "t", "path": "/", "status": status}).encode())
    assert status_of(document) == expected
