"""Which reply addresses are meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.placeholders.address import AddressPattern, InvalidPattern, has_address_prefix
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row


@each_row(
    ("pattern", "address"),
    [
        ("streamr/res", "streamr/res"),
        ("streamr/*/res", "streamr/a/res"),
        ("streamr/dev-*/res", "streamr/dev-7/res"),
        ("*-*-c", "a-b-c"),
        ("a*b*b", "axbxbxb"),
        ("streamr/**", "streamr/a/b/res"),
        ("**", "anything/at/all"),
        ("replies.*", "replies.pump.7"),
        ("a.b", "a.b"),
        ("/replies.*", "/replies.pump.7"),
        ("/streamr/*/res", "/streamr/a/res"),
    ],
)
def test_an_address_of_the_pattern_is_allowed(pattern: str, address: str) -> None:
    assert AddressPattern(pattern).allows(address)


@each_row(
    ("pattern", "address"),
    [
        ("streamr/*/res", "streamr/a/b/res"),
        ("streamr/*/res", "streamr//res"),
        ("streamr/*/res", "streamr/a/res/x"),
        ("streamr/*/res", "xstreamr/a/res"),
        ("streamr/*/res", "streamr/+/res"),
        ("streamr/*/res", "streamr/#/res"),
        ("streamr/dev-*/res", "streamr/dev-/res"),
        ("streamr/**", "streamr"),
        ("streamr/**", "streamr/"),
        ("**", "$SYS/broker"),
        ("**", ""),
        ("**", "a\nb"),
        ("**", "x" * 1025),
        ("a.b", "axb"),
        ("[ab]", "a"),
        ("*", "/a"),
        ("/*", "//a"),
    ],
)
def test_case_b05_an_address_outside_the_pattern_is_not(pattern: str, address: str) -> None:
    assert not AddressPattern(pattern).allows(address)


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [("r/a", True), ("r/a/b", True), ("r/", False), ("s/a", False), ("$SYS/r/", False), ("r/#", False)],
)
def test_case_b05_without_a_pattern_an_address_must_start_with_the_prefix_of_the_reply_target(
    address: str, is_allowed: bool
) -> None:
    assert has_address_prefix(address, "r/") is is_allowed


@pytest.mark.parametrize(
    ("address", "prefix", "is_allowed"),
    [("/replies", "/", True), ("/replies/a", "/replies/", True), ("//replies", "/", False), ("/a#", "/", False)],
)
def test_case_b05_a_prefix_of_the_operator_can_start_with_a_slash(address: str, prefix: str, is_allowed: bool) -> None:
    assert has_address_prefix(address, prefix) is is_allowed


@pytest.mark.parametrize("pattern", ["**/a", "a**", "a/**b", "***", "/".join("*" * 40)])
def test_an_ambiguous_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        AddressPattern(pattern)


def _matches(pattern: str, text: str) -> bool:
    """The same by trying everything."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_matches(pattern[1:], text[taken:]) for taken in range(1, len(text) + 1))
    return bool(text) and text[0] == pattern[0] and _matches(pattern[1:], text[1:])


@accepts(at_least=3)
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=6), st.text("ab", min_size=1, max_size=9))
def test_a_pattern_finds_every_match(pattern: list[str], text: str) -> None:
    joined = "".join(pattern)
    if "**" not in joined:
        accepted()
        assert AddressPattern(joined).allows(text) == _matches(joined, text)


def test_no_pattern_is_a_trap() -> None:
    with at_most(1):
        assert not AddressPattern("*a" * 400 + "*b").allows("a" * 1024)


def test_patterns_are_equal_by_their_text() -> None:
    assert len({AddressPattern("a/*"), AddressPattern("a/*"), AddressPattern("b/*")}) == 2
    assert repr(AddressPattern("a/*")) == "AddressPattern('a/*')"


@pytest.mark.parametrize(
    ("pattern", "address", "is_allowed"),
    [
        ("answers/*", "answers/acme.site:pump#1", True),
        ("/amq.rabbitmq.reply-to.*", "/amq.rabbitmq.reply-to.g1+A==", True),
        ("/*", "/a..b", True),
        ("*/*", "top#ic/key", False),
        ("answers/*", "others/acme.site:pump#1", False),
        ("*", "a+b", False),
        ("/*", "/a\nb", False),
        ("/*", "/a\0", False),
        ("answers/*", "answers/a\ufffd", False),
    ],
)
def test_a_pattern_allows_any_readable_text_in_a_key(pattern: str, address: str, is_allowed: bool) -> None:
    assert AddressPattern(pattern).allows(address, "/") is is_allowed
