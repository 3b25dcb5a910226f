"""What becomes of a peer's mistakes: reactive-streams-io, limits and malformed input."""

from __future__ import annotations

from mappings.reactive_streams_io.mistakes import Consequence, Mistake, broken, unsupported


def test_no_two_mistakes_are_the_same() -> None:
    assert len({mistake.condition for mistake in Mistake}) == len(list(Mistake))


def test_a_fatal_mistake_says_what_was_found_as_a_reason_to_part() -> None:
    assert broken(Mistake.UNKNOWN_CODE, "code 0x55").fault.message == (
        "protocol error: a code that no frame has: found code 0x55"
    )
    assert broken(Mistake.SEQUENCE_GAP).fault.message == "protocol error: sequence gap"
    assert unsupported(3).fault.message == "unsupported version 3; supported: 0"


def test_each_consequence_is_some_mistakes() -> None:
    assert {mistake.consequence for mistake in Mistake} == set(Consequence)
