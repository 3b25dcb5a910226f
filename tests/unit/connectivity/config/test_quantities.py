"""Quantities in settings: sizes and durations."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ByteSize, TypeAdapter, ValidationError

from connectivity.config.quantities import SIZE, Duration, DurationOrForever
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row


@each_row(
    ("text", "seconds"),
    [
        *(("7d", 604_800), ("10m", 600), ("500ms", 0.5), ("0.5s", 0.5), (" 2 h ", 7200), ("1w", 604_800), ("0s", 0)),
        *((5, 5), (0.25, 0.25), ("5", 5)),
    ],
)
def test_a_duration_has_a_unit(text: object, seconds: float) -> None:
    assert TypeAdapter(Duration).validate_python(text) == timedelta(seconds=seconds)


@each_row(
    "text", ["", "s", "5x", "999999999999w", "-5s", "1h30m", "5 s 6", True, [], "forever", "٣s", "1e3s", float("nan")]
)
def test_other_texts_are_no_duration(text: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


def test_a_number_before_much_white_space_is_refused_at_once() -> None:
    with at_most(1), pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python("5" + " " * 1_000_000 + "!")


@pytest.mark.parametrize("text", ["9" * 50_000 + "!", "1" + " " * 200_000 + "!"], ids=["digits", "white space"])
def test_a_long_text_is_refused_as_a_size_at_once(text: str) -> None:
    with at_most(1), pytest.raises(ValidationError):
        TypeAdapter(Annotated[ByteSize, SIZE]).validate_python(text)


WRITTEN = st.builds("{}{}".format, st.integers(0, 10**4), st.sampled_from(["ms", "s", " m", "h", "d", "w", "x"]))


@accepts(at_least=1)
@settings(max_examples=examples(250), deadline=None)
@given(st.text() | st.floats() | st.integers() | WRITTEN)
def test_any_value_is_a_duration_or_refused(value: object) -> None:
    try:
        found = TypeAdapter(DurationOrForever).validate_python(value)
    except ValidationError:
        return
    accepted()
    assert found is None or found >= timedelta(0)
