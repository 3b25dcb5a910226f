"""Caches for texts of clients: short ones are kept, the last so many, and long ones are not."""

from __future__ import annotations

from mappings.text_cache import MAX_CACHED_LENGTH, cached_if_short

calls: list[str] = []


@cached_if_short(2)
def read(text: str) -> str:
    """Return a text twice."""
    calls.append(text)
    return text * 2


def calls_for(*texts: str) -> list[str]:
    """Return those of the texts for which the function was executed."""
    calls.clear()
    for text in texts:
        assert read(text) == text * 2
    return list(calls)


def test_a_result_for_a_short_text_is_kept_until_others_take_its_place() -> None:
    assert calls_for("a", "a", "b", "a", "c", "a", "b") == ["a", "b", "c", "b"]


def test_a_result_for_a_long_text_is_not_kept() -> None:
    long = "a" * (MAX_CACHED_LENGTH + 1)
    assert calls_for(long, long) == [long, long]
    assert calls_for(long[1:], long[1:]) == [long[1:]]


def test_a_result_that_is_used_again_outlives_any_number_of_others() -> None:
    others = [text for number in range(100) for text in (f"text {number}", "often")]
    assert calls_for("often", *others).count("often") == 1


def test_the_number_of_kept_results_is_bounded() -> None:
    calls_for(*map(str, range(100)))
    assert calls_for(*map(str, range(100))) == [str(number) for number in range(100)]
