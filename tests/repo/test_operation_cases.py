"""Each case of configuration and operations of connections, 44 to 62, has a test with a service.

The table lists them. It fails for a test that is renamed, that pytest does not collect, or that has no assertion.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.paths import TESTS

CASES = {
    44: ("service/test_operations.py", "test_cases_44_45_47_a_connection_that_cannot_be_is_refused_with_its_code"),
    45: ("service/test_operations.py", "test_cases_44_45_47_a_connection_that_cannot_be_is_refused_with_its_code"),
    46: ("service/test_connection_test.py", "test_case_46_a_put_on_a_fresh_id_creates"),
    47: ("service/test_operations.py", "test_cases_44_45_47_a_connection_that_cannot_be_is_refused_with_its_code"),
    48: (
        "service/test_connection_test.py",
        "test_case_48_a_broker_that_cannot_be_used_is_reported_and_nothing_is_stored",
    ),
    49: ("service/test_monitoring.py", "test_case_49_the_log_follows_a_message_from_its_source_to_the_target"),
    50: (
        "service/test_monitoring.py",
        "test_case_50_an_unreadable_message_without_a_reply_address_is_acknowledged_and_logged",
    ),
    51: ("links/test_kafka.py", "test_case_51_throttling_bounds_the_records_of_a_second"),
    52: ("service/test_cases_brokers.py", "test_case_52_things_and_headers_have_a_largest_size"),
    53: ("service/test_mappings.py", "test_case_53_each_command_of_a_delivery_is_answered_once_in_its_own_format"),
    54: (
        "service/test_target_cases.py",
        "test_case_54_a_mapper_that_returns_several_messages_has_all_of_them_published_in_order",
    ),
    55: ("service/test_mappings.py", "test_case_55_a_gateway_s_device_gets_its_thing_and_its_status"),
    56: ("service/test_live.py", "test_case_21_and_56_a_connection_announces_that_it_opens_and_that_it_closes"),
    57: ("service/test_live.py", "test_case_57_an_answer_is_diverted_to_another_broker"),
    58: (
        "service/test_live.py",
        "test_case_58_a_live_command_gets_a_response_that_requires_no_response",
    ),
    59: ("service/test_target_cases.py", "test_case_59_an_event_lacks_the_feature_that_a_policy_revokes"),
    60: (
        "service/test_target_cases.py",
        "test_case_60_a_filter_on_the_action_lets_the_beginning_and_the_end_pass",
    ),
    61: (
        "service/test_target_cases.py",
        "test_case_61_two_topics_that_match_make_one_message_with_the_fields_of_one",
    ),
    62: (
        "service/test_target_cases.py",
        "test_case_62_extra_fields_have_the_new_value_and_every_feature_that_has_one",
    ),
}


def collected(body: list[ast.stmt]) -> Iterator[str]:
    """The names of the tests that pytest collects, as far as they assert something."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from collected(node.body)
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and any(isinstance(part, ast.Assert) for part in ast.walk(node))
        ):
            yield node.name


def test_every_case_is_a_test_that_pytest_collects_and_that_asserts_something() -> None:
    assert sorted(CASES) == list(range(44, 63))
    tests = {file: set(collected(ast.parse((TESTS / file).read_text("utf-8")).body)) for file, _ in CASES.values()}
    assert [f"{number}: {file}::{name}" for number, (file, name) in CASES.items() if name not in tests[file]] == []


def test_the_name_of_a_test_has_the_number_of_its_case() -> None:
    assert [(number, name) for number, (_, name) in CASES.items() if str(number) not in re.findall(r"\d+", name)] == []


def test_a_test_that_is_not_collected_or_asserts_nothing_is_missed() -> None:
    source = """
def test_case_1():
    assert 1

def test_case_2():
    pass

def helper():
    def test_case_3():
        assert 3

class TestSome:
    async def test_case_4(self):
        assert 4

# def test_case_5(): assert 5
"""
    assert list(collected(ast.parse(source).body)) == ["test_case_1", "test_case_4"]
