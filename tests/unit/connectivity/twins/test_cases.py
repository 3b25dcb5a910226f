"""Each of the 118 cases of the protocol for things and policies has a test.

Its number is in the test's name, or here. Tests with numbers of other lists, or none, cover histories and acknowledgements.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.table import each_row

FILES = (
    *(ROOT / "tests" / "unit" / "connectivity" / "twins").glob("test_*.py"),
    *(
        ROOT / "tests" / "unit" / "connectivity" / f"{name}.py"
        for name in (
            "dispatch/test_command_executor",
            "dispatch/test_weak_acknowledgements",
            "maintenance/test_policy_expiry",
            "targets/test_event_cursor",
            "targets/test_topic_filter",
        )
    ),
    *(ROOT / "tests" / "service" / f"test_{name}.py" for name in ("policies", "targets", "twins")),
)
ELSEWHERE = {
    89: ("unit/connectivity/store/test_past_state.py", "test_row_03_the_state_after_each_revision"),
    90: ("service/test_streaming.py", "test_case_01_the_whole_history_of_a_thing"),
    91: ("service/test_streaming.py", "test_case_29_two_requests_in_a_row_add_up"),
    92: ("service/test_streaming.py", "test_the_range_that_is_asked_for"),
    93: ("service/test_streaming.py", "test_case_46_47_an_unreadable_filter_fails_at_the_first_request"),
    94: ("service/test_streaming.py", "test_case_56_57_an_unknown_id_is_not_found"),
    96: ("service/test_streaming.py", "test_case_24_41_the_history_of_a_policy"),
    97: (
        "unit/connectivity/dispatch/test_dispatcher.py",
        "test_nothing_is_answered_or_acknowledged_before_it_is_durable",
    ),
    101: (
        "unit/connectivity/dispatch/test_dispatcher.py",
        "test_twin_case_101_a_command_that_requests_neither_response_nor_acknowledgement_is_acknowledged_silently",
    ),
    102: (
        "unit/connectivity/dispatch/test_request_reply.py",
        "test_case_38_an_undeclared_label_is_refused_and_not_forwarded",
    ),
    104: (
        "unit/connectivity/dispatch/test_request_reply.py",
        "test_a_failed_command_is_answered_with_its_own_error",
    ),
    105: (
        "unit/connectivity/dispatch/test_request_reply.py",
        "test_case_40_failures_are_published_only_where_nacks_are_expected",
    ),
    117: ("service/test_mqtt_5.py", "test_case_117_a_command_for_another_thing_changes_nothing"),
}

_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
_NUMBERS = re.compile(r"test_cases?((?:_(?:and_)?\d+)+)")


def names_in(path: Path) -> list[str]:
    return _TEST.findall(path.read_text(encoding="utf-8"))


def numbered() -> set[int]:
    """Return the cases whose numbers are in the names of the tests of things and policies."""
    found = (_NUMBERS.match(name) for path in FILES for name in names_in(path))
    return {int(number) for match in found if match is not None for number in re.findall(r"\d+", match[1])}


def test_every_case_is_a_test() -> None:
    assert numbered() & set(range(1, 119)) | ELSEWHERE.keys() == set(range(1, 119))


@each_row("number", ELSEWHERE)
def test_a_case_listed_as_tested_elsewhere_has_its_test(number: int) -> None:
    file, name = ELSEWHERE[number]
    assert name in names_in(ROOT / "tests" / file)
