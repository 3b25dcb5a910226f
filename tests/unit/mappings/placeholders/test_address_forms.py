"""Values that may become part of an address, and values that may not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import UnsafeAddress
from mappings.placeholders.address import resolve_address, unsafe_in_address
from mappings.placeholders.template import PlaceholderContext, parse
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row


def address(template: str, **headers: object) -> str | None:
    return resolve_address(parse(template), PlaceholderContext(headers=headers))


@each_row("value", ["a", "devices/7/replies", "acme.site:lamp-7", "a b", "ü/日本", "a$b", "a.b", "-", "*"])
def test_ordinary_values_are_fit(value: str) -> None:
    assert unsafe_in_address(value) is None


@each_row(
    ("value", "reason"),
    [
        ("devices/+", "a wildcard"),
        ("devices/#", "a wildcard"),
        ("a+b", "a wildcard"),
        ("$SYS/broker", "a leading dollar sign"),
        ("$share/g/a", "a leading dollar sign"),
        ("a\r\nb", "a line break"),
        ("a\x00b", "control character"),
        ("a\x85b", "control character"),
        ("a\u2028b", "a line break"),
        ("a\ud800", "half of a surrogate pair"),
        ("a\ufffd", "could not be decoded"),
        ("", "an empty part"),
        ("/a", "an empty part"),
        ("a//b", "an empty part"),
        ("a/", "an empty part"),
        ("..", "two dots"),
        ("a/../b", "two dots"),
    ],
)
def test_a_value_that_would_reach_elsewhere_is_refused_with_its_reason(value: str, reason: str) -> None:
    assert reason in str(unsafe_in_address(value))
    with pytest.raises(UnsafeAddress) as raised:
        address("down/{{ header:to }}", to=value)
    assert raised.value.fault.status == 400
    assert raised.value.fault.error == "connectivity:message.sending.failed"
    assert "{{ header:to }}" in raised.value.fault.message
    assert reason in raised.value.fault.message


def test_the_text_of_the_operator_is_not_checked() -> None:
    assert address("$SYS//#/+/") == "$SYS//#/+/"
    assert address("$SYS//{{ header:to }}/", to="a") == "$SYS//a/"


@pytest.mark.parametrize(
    ("path", "found"),
    [("/attributes/on", "out/attributes/on"), ("/", "out/"), ("/attributes/a b", "out/attributes/a b")],
)
def test_a_path_of_a_signal_starts_with_a_slash_in_an_address_too(path: str, found: str) -> None:
    assert resolve_address(parse("out{{ resource:path }}"), PlaceholderContext(resource_path=path)) == found


@pytest.mark.parametrize("path", ["/attributes/#", "//a", "/attributes/+/b", "/$SYS", "/attributes/"])
def test_a_resource_path_from_a_client_is_checked_before_use_in_an_address(path: str) -> None:
    with pytest.raises(UnsafeAddress):
        resolve_address(parse("out{{ resource:path }}"), PlaceholderContext(resource_path=path))


def test_an_address_uses_the_first_of_several_values() -> None:
    assert address("{{ header:to }}/{{ header:or }}", to=["a", "b#"], **{"or": ["1", "2"]}) == "a/1"


@pytest.mark.parametrize("template", ["{{ header:nope }}", "a/{{ header:nope }}", "{{ fn:delete() }}"])
def test_an_unresolved_or_deleted_placeholder_gives_no_address(template: str) -> None:
    assert address(template) is None


def test_deleted_parts_are_left_out() -> None:
    assert address("a{{ fn:delete() }}b") == "ab"


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(st.text(st.sampled_from("+#$/.\x00\n\ud800ab"), max_size=6) | st.text("a$.", max_size=3))
def test_a_value_accepted_for_an_address_has_no_unsafe_part(value: str) -> None:
    if unsafe_in_address(value) is None:
        accepted()
        assert not set(value) & set("+#\x00\n\ud800")
        assert all(value.split("/"))
        assert not value.startswith("$")
        assert ".." not in value
