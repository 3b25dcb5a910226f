"""The values of streaming commands, where the vector files do not say it all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ditto.document import read_message
from mappings.ditto.subscriptions import HISTORY_COMMANDS
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Cancel, HistoryQuery, Request, Subscribe, SubscriptionKind
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


def command(action: str, value: Any, path: str = "/") -> Subscribe | Request | Cancel:
    payload = json.dumps({"topic": "x", "path": path, "value": value})
    return HISTORY_COMMANDS[action](read_message(payload.encode()), {}, LAMP)


@pytest.mark.parametrize("value", [None, {}])
def test_a_subscribe_without_a_value_selects_everything(value: Any) -> None:
    found = command("subscribeForPersistedEvents", value)
    assert found == Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {})


def test_a_subscribe_to_a_part_is_an_unknown_path() -> None:
    with pytest.raises(UnknownPath):
        command("subscribeForPersistedEvents", {}, "/features/lamp")


def test_request_and_cancel_name_the_entity_of_their_topic() -> None:
    found = command("request", {"subscriptionId": "k", "demand": 3})
    assert found == Request(SubscriptionKind.HISTORY, "k", 3, {}, LAMP)
    assert command("cancel", {"subscriptionId": "k"}) == Cancel(SubscriptionKind.HISTORY, "k", {}, LAMP)


@pytest.mark.parametrize("demand", [2**63 - 1, -(2**63), 0, 2.0, 1e2])
def test_case_34_a_whole_number_is_a_demand_in_any_spelling(demand: float) -> None:
    found = command("request", {"subscriptionId": "k", "demand": demand})
    assert isinstance(found, Request)
    assert found.demand == demand
    assert type(found.demand) is int


@pytest.mark.parametrize("demand", [0.5, 9.3e18, -9.3e18, True, "1", [], {}])
def test_case_34_anything_else_is_no_demand(demand: Any) -> None:
    with pytest.raises(DecodeError):
        command("request", {"subscriptionId": "k", "demand": demand})


MEMBERS = st.sampled_from(
    ["subscriptionId", "demand", "filter", "fromHistoricalRevision", "toHistoricalRevision", "fromHistoricalTimestamp"]
)
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30) | st.just([])
)


NEARLY = st.builds(
    dict.__or__, st.just({"subscriptionId": "k", "demand": 3}), st.dictionaries(MEMBERS, VALUES, max_size=1)
)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(sorted(HISTORY_COMMANDS)), st.dictionaries(MEMBERS, VALUES) | VALUES | NEARLY)
def test_any_value_is_a_command_or_a_decode_error(action: str, value: Any) -> None:
    try:
        command(action, value)
    except DecodeError as error:
        refused = error
    else:
        accepted()
        return
    assert refused.fault.error in ("json.invalid", "json.format.invalid", "json.field.missing")
