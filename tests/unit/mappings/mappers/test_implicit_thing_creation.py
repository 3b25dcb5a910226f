"""ImplicitThingCreation: a thing for every device that sends a message."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from mappings.errors import PlaceholderError
from mappings.options import FAILED, INVALID, InvalidMapperOptions
from tests.contract.payload_mapper import MapperBehaviors, mapper, read

SMALL = {"thing": {"thingId": "{{ header:device_id }}"}}


class TestImplicitThingCreation(MapperBehaviors):
    name = "ImplicitThingCreation"
    options = SMALL
    headers: ClassVar = {"device_id": "acme.site:lamp-7"}


def test_command_headers_are_resolved_again_for_each_delivery() -> None:
    """Headers of the command are resolved again for each delivery."""
    codec = mapper("ImplicitThingCreation", {**SMALL, "commandHeaders": {"gateway": "{{ header:gateway }}"}})
    (first,) = read(codec, b"", {"device_id": "acme.site:lamp-7"})
    (second,) = read(codec, b"", {"device_id": "acme.site:lamp-8", "gateway": "g-1"})
    assert "gateway" not in first.headers
    assert second.headers["gateway"] == "g-1"


def test_a_member_without_a_value_is_an_error_and_no_gap() -> None:
    codec = mapper("ImplicitThingCreation", {"thing": {"thingId": "a:b", "attributes": {"x": "{{ header:none }}"}}})
    with pytest.raises(PlaceholderError):
        read(codec, b"")


@pytest.mark.parametrize(
    ("thing", "steps", "code"),
    [
        ("text", ("thing",), INVALID),
        ({}, ("thing", "thingId"), INVALID),
        ({"thingId": 7}, ("thing", "thingId"), INVALID),
        ({"thingId": "lamp 7"}, ("thing", "thingId"), INVALID),
        ({"thingId": "{{ thing:id }}"}, ("thing", "thingId"), FAILED),
        ({"thingId": "a:b", "attributes": {"x": [1, "{{ header: }}"]}}, ("thing", "attributes", "x", 1), FAILED),
    ],
    ids=["no object", "no id", "a number", "no id of a thing", "not known before reading", "deep inside"],
)
def test_a_template_that_no_thing_can_come_of_is_refused(thing: Any, steps: tuple[str | int, ...], code: str) -> None:
    with pytest.raises(InvalidMapperOptions) as caught:
        mapper("ImplicitThingCreation", {"thing": thing})
    (problem,) = caught.value.problems
    assert (problem.steps, problem.code) == (steps, code)
