"""The values of search commands, where the vector files do not say it all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ditto.document import read_message
from mappings.ditto.subscriptions import SEARCH_COMMANDS
from mappings.errors import DecodeError
from mappings.model.signals import SearchQuery, Subscribe
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples


def message(value: Any, **members: Any) -> Any:
    return read_message(json.dumps({"topic": "x", "path": "/", "value": value, **members}).encode())


def test_an_aggregation_keeps_its_numbers_as_they_were_written() -> None:
    payload = b'{"topic":"x","path":"/","value":{"aggregation": {"n": 1.50, "s": "\\u0041"} }}'
    subscribe = SEARCH_COMMANDS["subscribe"](read_message(payload), {})
    assert isinstance(subscribe, Subscribe)
    assert subscribe.query == SearchQuery(aggregation=b'{"n":1.50,"s":"\\u0041"}')
    assert subscribe.entity is None


@pytest.mark.parametrize("fields", ["a(", "a)", "(a)", "a(b", ",", "a/(b)c"])
def test_fields_that_cannot_be_read_are_a_mistake_of_the_message(fields: str) -> None:
    with pytest.raises(DecodeError) as caught:
        SEARCH_COMMANDS["subscribe"](message({}, fields=fields), {})
    assert caught.value.fault.error == "json.fieldselector.invalid"


MEMBERS = st.sampled_from(["subscriptionId", "demand", "filter", "options", "namespaces", "aggregation"])
VALUES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=9) | st.lists(st.text(max_size=3))


NEARLY = st.builds(
    dict.__or__, st.just({"subscriptionId": "k", "demand": 3}), st.dictionaries(MEMBERS, VALUES, max_size=1)
)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(sorted(SEARCH_COMMANDS)), st.dictionaries(MEMBERS, VALUES) | VALUES | NEARLY)
def test_any_value_is_a_command_or_a_decode_error(action: str, value: Any) -> None:
    try:
        SEARCH_COMMANDS[action](message(value), {})
    except DecodeError as error:
        refused = error
    else:
        accepted()
        return
    assert refused.fault.error in ("json.invalid", "json.format.invalid", "json.field.missing")
