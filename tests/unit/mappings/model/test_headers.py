"""Headers: the table, inbound and outbound headers, and those that mappings set."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import DecodeError, UnknownFunction, UnknownPlaceholder
from mappings.model.headers import (
    FIELDS,
    MAX_SIZE,
    normalize,
    readable,
    repeated_headers,
    require_size,
    response_required,
    timeout_seconds,
)
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import PlaceholderContext, Scope
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row


def refused(name: str, value: object, *, mapped: bool = False) -> DecodeError:
    with pytest.raises(DecodeError) as raised:
        normalize({name: value}, mapped=mapped)
    assert raised.value.fault.status == 400
    assert raised.value.fault.extra == {"invalidHeaderKey": name}
    return raised.value


INTERNAL = [name for name, row in FIELDS.items() if not row.is_read and not row.is_written]
READ_ONLY = [name for name, row in FIELDS.items() if row.is_read and not row.is_written]
WRITE_ONLY = [name for name, row in FIELDS.items() if row.is_written and not row.is_read]


# --- coming in ----------------------------------------------------------------------------------------------------------


def test_names_of_the_table_are_in_lower_case_and_others_as_they_were_sent() -> None:
    assert normalize({"Correlation-ID": "c-1", "X-Trace": "t"}) == {"correlation-id": "c-1", "X-Trace": "t"}


@each_row("name", [*INTERNAL, *WRITE_ONLY, "ditto-pre-defined-extra-fields-object"])
def test_a_header_that_clients_cannot_set_is_dropped(name: str) -> None:
    assert normalize({name: "x", name.upper(): "y", "a": "1"}) == {"a": "1"}


def test_null_is_dropped() -> None:
    assert normalize({"correlation-id": None, "timeout": None, "custom": None}) == {}


@each_row(
    ("name", "value", "expected"),
    [
        ("correlation-id", 7, "7"),
        ("reply-to", True, "true"),
        ("custom", 7, "7"),
        ("custom", False, "false"),
        ("custom", ["a", 1], '["a",1]'),
        ("custom", {"a": 1}, '{"a":1}'),
        ("custom", "", ""),
        ("response-required", True, True),
        ("response-required", "false", False),
        ("version", 2, 2),
        ("version", "2", 2),
        ("version", 2.0, 2),
        ("at-historical-revision", "4", 4),
        ("at-historical-revision", 2**63 - 1, 2**63 - 1),
        ("at-historical-timestamp", "bad", "bad"),
        ("requested-acks", ["a:b"], ["a:b"]),
        ("requested-acks", [], []),
        ("requested-acks", '["a:b"]', ["a:b"]),
        ("timeout", 10, 10),
        ("timeout", "10s", "10s"),
        ("timeout", "0", "0"),
        ("if-match", "*", "*"),
        ("if-none-match", '"rev:1", W/"x"', '"rev:1", W/"x"'),
        ("if-equal", "skip", "skip"),
        ("channel", "twin", "twin"),
        ("put-metadata", [{"key": "/a", "value": 1}], [{"key": "/a", "value": 1}]),
        ("merge-thing-patch-conditions", {"/a": "gt(b,1)"}, {"/a": "gt(b,1)"}),
        ("merge-thing-patch-conditions", '{"/a":"gt(b,1)"}', {"/a": "gt(b,1)"}),
    ],
)
def test_a_value_gets_the_type_of_its_header(name: str, value: object, expected: object) -> None:
    found = normalize({name: value})[name]
    assert found == expected
    assert type(found) is type(expected)


@each_row(
    ("name", "value"),
    [
        ("response-required", "x"),
        ("response-required", 1),
        ("response-required", "TRUE"),
        ("version", "two"),
        ("version", True),
        ("version", 2**31),
        ("version", 2.5),
        ("at-historical-revision", "x"),
        ("at-historical-revision", 2**63),
        ("at-historical-revision", float("inf")),
        ("requested-acks", "a,b"),
        ("requested-acks", {"a": 1}),
        ("requested-acks", [1]),
        ("requested-acks", "[" * 3000),
        ("correlation-id", ""),
        ("if-match", "rev:1"),
        ("if-match", '"a" "b"'),
        ("if-none-match", '"a*"'),
        ("if-match", ""),
        ("if-equal", "never"),
        ("channel", "dead"),
        ("put-metadata", "x"),
        ("merge-thing-patch-conditions", []),
        ("allow-policy-lockout", "yes"),
        ("live-channel-timeout-strategy", "wait"),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(name: str, value: object) -> None:
    assert refused(name, value).fault.error == "header.invalid"


def test_case_e5_the_message_for_an_invalid_header() -> None:
    fault = refused("response-required", "x").fault
    assert fault.message == "The value 'x' of the header 'response-required' is not a valid boolean."
    assert fault.description == (
        "Verify that the value of the header 'response-required' is a valid 'boolean' and try again."
    )


@each_row("value", ["-1", -1, "x", "", "10 s", "1.5", 1.5, True, "10y", [1], "9" * 19])
def test_a_malformed_or_negative_timeout_is_never_header_invalid(value: object) -> None:
    assert refused("timeout", value).fault.error == "timeout.invalid"


def test_a_header_error_keeps_the_readable_headers() -> None:
    """So that the answer carries the correlation id and finds the reply address."""
    with pytest.raises(DecodeError) as raised:
        normalize({"timeout": "x", "Correlation-Id": "c-1", "version": "z", "reply-to": "a/b"})
    assert raised.value.fault.error == "timeout.invalid"
    assert raised.value.headers == {"correlation-id": "c-1", "reply-to": "a/b"}


def test_the_readable_ones_are_those_of_their_type() -> None:
    assert readable({"version": "z", "correlation-id": "c-1", "X": "1"}) == {"correlation-id": "c-1", "X": "1"}


def test_the_later_of_two_spellings_of_a_header_wins() -> None:
    assert normalize({"X-a": "1", "x-A": "2"}) == {"x-A": "2"}
    assert normalize({"X-a": "1", "x-A": "2", "X-a ": "3"}) == {"x-A": "2", "X-a ": "3"}
    assert normalize({"Version": 1, "version": 2}) == {"version": 2}


@pytest.mark.parametrize(
    ("value", "labels"),
    [("a:b, c:d", ["a:b", "c:d"]), ("", []), ("a:b,", ["a:b"]), ('["a:b"]', ["a:b"]), (["a:b"], ["a:b"])],
)
def test_a_list_with_commas_will_do_where_headers_are_mapped(value: object, labels: list[str]) -> None:
    assert normalize({"requested-acks": value}, mapped=True) == {"requested-acks": labels}


def test_the_size_is_that_of_names_and_values_together() -> None:
    require_size({"ab": "x" * (MAX_SIZE - 2)})
    with pytest.raises(DecodeError) as raised:
        require_size({"ab": "x" * (MAX_SIZE - 1)})
    assert (raised.value.fault.status, raised.value.fault.error) == (431, "headers.too.large")
    assert f"found {MAX_SIZE + 1} characters, expected at most {MAX_SIZE}" in raised.value.fault.message


@pytest.mark.parametrize(("value", "size"), [("é", 2), ("𝄞", 3), (True, 5), (["a"], 6), (10, 3)])
def test_the_size_of_headers_is_measured_in_utf_16_units_and_json(value: object, size: int) -> None:
    require_size({"a": value}, size)
    with pytest.raises(DecodeError):
        require_size({"a": value}, size - 1)


def test_headers_that_are_too_large_keep_the_correlation_id_for_the_response() -> None:
    with pytest.raises(DecodeError) as raised:
        require_size({"correlation-id": "c-1", "x": "y" * MAX_SIZE})
    assert raised.value.headers == {"correlation-id": "c-1"}


def test_thousands_of_headers_are_refused_before_they_are_read() -> None:
    many: dict[str, object] = {f"x{number}": [number] for number in range(100_000)}
    with at_most(0.06), pytest.raises(DecodeError, match="too large") as raised:
        normalize({"version": "none", "correlation-id": "c-1", **many})
    assert raised.value.fault.status == 431
    assert raised.value.headers == {"correlation-id": "c-1"}
    assert readable({"correlation-id": "c-1", **many}) == {"correlation-id": "c-1"}
    assert normalize(dict.fromkeys(many)) == {}


@each_row(
    ("value", "seconds"),
    [(10, 10.0), ("10", 10.0), ("10s", 10.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), (0, 0.0), ("0ms", 0.0)],
)
def test_a_timeout_is_reported_in_seconds(value: object, seconds: float) -> None:
    assert timeout_seconds(normalize({"timeout": value})) == pytest.approx(seconds)


def test_a_missing_timeout_has_no_seconds() -> None:
    assert timeout_seconds({}) is None


@each_row(
    ("headers", "required"),
    [
        ({}, True),
        ({"response-required": True}, True),
        ({"response-required": False}, False),
        ({"response-required": "false"}, False),
        ({"timeout": 0}, False),
        ({"timeout": "0s"}, False),
        ({"timeout": "1s"}, True),
        ({"timeout": 0, "response-required": True}, True),
        ({"requested-acks": []}, True),
    ],
)
def test_a_response_is_required_unless_a_header_disables_it(headers: dict[str, object], required: bool) -> None:
    assert response_required(normalize(headers)) is required


# --- going out ----------------------------------------------------------------------------------------------------------


@each_row("name", [*READ_ONLY, *INTERNAL])
def test_an_internal_header_is_not_written(name: str) -> None:
    assert name not in repeated_headers({name: "x"})


@each_row("name", [*WRITE_ONLY, "X-Custom", "correlation-id", "reply-to", "timeout"])
def test_written_headers_and_custom_headers_are_written_unchanged(name: str) -> None:
    assert repeated_headers({name: "x"})[name] == "x"


def test_the_signals_of_a_subscription_echo_the_wish_for_a_response() -> None:
    assert repeated_headers({"response-required": True, "if-match": "*"}) == {"response-required": True}
    assert repeated_headers({}) == {}


names = st.one_of(st.sampled_from(sorted(FIELDS)), st.text(max_size=8)).flatmap(
    lambda name: st.sampled_from([name, name.upper(), name.title()])
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@accepts(at_least=1)
@settings(max_examples=examples(300))
@given(st.dictionaries(names, values, max_size=5), st.booleans())
def test_any_headers_are_normalised_or_refused(headers: dict[str, object], mapped: bool) -> None:
    """Read headers are normalized already, and internal headers are not sent."""
    found = readable(headers, mapped=mapped)
    assert normalize(found) == found
    assert not set(repeated_headers(found)) & {*INTERNAL, *READ_ONLY}
    # Of two spellings of one name the second may be refused though the first can be read.
    if found and len(found) == sum(value is not None for value in headers.values()):
        accepted()
        assert normalize(headers, mapped=mapped) == found


# --- mapping ------------------------------------------------------------------------------------------------------------


def test_a_mapping_fills_headers_and_omits_headers_without_a_value() -> None:
    mapping = HeaderMapping(
        {
            "content-type": "application/json",
            "reply-to": "{{ header:reply-to }}",
            "battery": "{{ header:batt | fn:default('unknown') }}",
            "gone": "{{ header:reply-to | fn:delete() }}",
            "missing": "x-{{ header:nope }}",
            "first": "{{ header:many }}",
        }
    )
    context = PlaceholderContext(headers={"Reply-To": "a/b", "many": ["1", "2"]})
    assert mapping.apply(context) == {
        "content-type": "application/json",
        "reply-to": "a/b",
        "battery": "unknown",
        "first": "1",
    }


def test_names_of_mapped_headers_stay_as_they_are_configured() -> None:
    assert HeaderMapping({"Content-Type": "x"}).apply(PlaceholderContext()) == {"Content-Type": "x"}


def test_the_result_of_a_mapping_is_a_copy() -> None:
    mapping = HeaderMapping({"a": "1"})
    mapping.apply(PlaceholderContext())["b"] = "2"
    assert mapping.apply(PlaceholderContext()) == {"a": "1"}


def test_a_mapping_knows_the_placeholders_that_it_uses() -> None:
    mapping = HeaderMapping({"a": "{{ header:mqtt.topic }}", "b": "{{ thing:id | fn:default(header:X) }}", "c": "1"})
    assert mapping.names == {"header:mqtt.topic", "thing:id", "header:x"}


def test_an_empty_mapping_is_false_and_a_filled_mapping_shows_its_headers() -> None:
    assert not HeaderMapping({})
    assert HeaderMapping({"a": "1"})
    assert re.fullmatch(r"HeaderMapping\(\{'a': '1'\}\)", repr(HeaderMapping({"a": "1"})))


def test_a_template_that_is_not_understood_is_found_when_the_mapping_is_made() -> None:
    with pytest.raises(UnknownFunction):
        HeaderMapping({"a": "{{ header:a | fn:nope() }}"})
    with pytest.raises(UnknownPlaceholder):
        HeaderMapping({"a": "{{ thing:id }}"}, Scope.AUTHORIZATION)
