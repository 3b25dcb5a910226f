"""Caches for texts of clients: short ones are kept, the last so many, and long ones are not."""

from __future__ import annotations

from mappings.text_cache import MAX_CACHED_LENGTH, cached_if_short

calls: list[str] = []


@cached_if_short(2)
def read(kind: int, text: str) -> str:
    """Return a text."""
    calls.append(text)
    return text * kind


def calls_for(*texts: str) -> list[str]:
    """Return those of the texts for which the function was executed."""
    calls.clear()
    for text in texts:
        assert read(2, text) == text * 2
    return list(calls)


def test_a_result_for_a_short_text_is_kept_until_others_take_its_place() -> None:
    assert calls_for("a", "a", "b", "a", "c", "a", "b") == ["a", "b", "c", "b"]


def test_a_result_for_a_long_text_is_not_kept() -> None:
    long = "a" * (MAX_CACHED_LENGTH + 1)
    assert calls_for(long, long) == [long, long]
    assert calls_for(long[1:], long[1:]) == [long[1:]]


def test_a_function_keeps_its_name_and_description() -> None:
    assert (read.__name__, read.__doc__) == ("read", "Return a text.")
