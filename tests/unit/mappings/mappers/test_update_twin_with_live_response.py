"""UpdateTwinWithLiveResponse: what a device answers becomes the state of its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mappings.ids import EntityId, EntityType
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, Inbound, LiveCommand, LiveResponse, Outbound
from tests.contract.payload_mapper import MapperBehaviors, mapper, read

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
ANSWER = LiveResponse(LAMP, "retrieve", "/attributes/on", 200, b"true", {"correlation-id": "c-1"})
MERGE = {"response-required": False, "if-match": "*", "content-type": "application/merge-patch+json"}


class TestUpdateTwinWithLiveResponse(MapperBehaviors):
    name = "UpdateTwinWithLiveResponse"


class Reading(Codec):
    """Reads one signal in everything."""

    def __init__(self, signal: Inbound) -> None:
        self._signal = signal

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        return [self._signal]

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        return []


def made_of(signal: Inbound, options: Mapping[str, Any] | None = None, **headers: str) -> list[Inbound]:
    """Return the signals that the mapper makes of a delivery with `signal`."""
    codec = mapper("UpdateTwinWithLiveResponse", options)
    codec.reading = Reading(signal)  # type: ignore[attr-defined]
    return read(codec, b"{}", headers)


def test_an_answer_becomes_a_merge_at_its_path() -> None:
    headers = {**MERGE, "correlation-id": "c-1-merge-into-twin"}
    assert made_of(ANSWER) == [Command(LAMP, "merge", "/attributes/on", b"true", headers)]


def test_an_answer_without_a_correlation_id_lets_the_source_choose_one() -> None:
    assert made_of(replace(ANSWER, headers={})) == [Command(LAMP, "merge", "/attributes/on", b"true", MERGE)]


def test_the_headers_of_the_merge_are_templates() -> None:
    options = {"dittoHeadersForMerge": {"origin": "{{ header:gateway }}", "lost": "{{ header:none }}"}}
    (merge,) = made_of(ANSWER, options, gateway="g-1")
    assert merge.headers == {
        "origin": "g-1",
        "correlation-id": "c-1-merge-into-twin",
        "content-type": "application/merge-patch+json",
    }


@pytest.mark.parametrize(
    "signal",
    [
        replace(ANSWER, action="modify"),
        replace(ANSWER, status=404),
        replace(ANSWER, status=304),
        replace(ANSWER, value=None),
        replace(ANSWER, entity=EntityId(EntityType.POLICY, "acme.site", "lamp-7")),
        LiveCommand(LAMP, "retrieve", "/attributes/on", None, {}),
        Command(LAMP, "retrieve", "/attributes/on", None, {}),
    ],
    ids=["a change", "a refusal", "not changed", "no value", "a policy", "a live command", "a twin command"],
)
def test_nothing_comes_of_anything_else(signal: Inbound) -> None:
    assert made_of(signal) == []
