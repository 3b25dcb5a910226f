"""The IDs of described topics, to which the library keeps references."""

from __future__ import annotations

import weakref
from ctypes import py_object, pythonapi
from types import SimpleNamespace
from typing import Any

import pytest

from connectivity.transports.kafka.group import described_topic_id


class Id:
    def __str__(self) -> str:
        return "rhZwTbLpQ5GIZm3q3gk2bA"


@pytest.mark.parametrize("kept_by_library", [True, False])
def test_the_id_of_a_described_topic_is_freed_with_the_description(kept_by_library: bool) -> None:
    described: Any = SimpleNamespace(topic_id=Id())
    if kept_by_library:
        pythonapi.Py_IncRef(py_object(described.topic_id))
    freed = weakref.ref(described.topic_id)
    assert [described_topic_id(described) for _ in range(3)] == ["rhZwTbLpQ5GIZm3q3gk2bA"] * 3
    assert freed() is not None
    del described
    assert freed() is None
