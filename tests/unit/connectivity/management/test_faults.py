"""Error codes and statuses that operators receive."""

from __future__ import annotations

from pathlib import Path

from connectivity.errors import Problem
from connectivity.management import faults
from mappings.errors import Fault
from tests.support.table import each_row

LABEL = Problem("targets[1]", "twice", "once", code="acknowledgement:label.not.unique")
OTHER = Problem("uri", "nowhere", "an address", code="connectivity:connection.uri.invalid")


@each_row(
    ("fault", "status", "code"),
    [
        (faults.not_found("depot"), 404, "connectivity:connection.notfound"),
        (faults.no_history("depot"), 404, "connectivity:connection.history.notfound"),
        (faults.exists("depot"), 409, "connectivity:connection.conflict"),
        (faults.owned_by_file("depot", Path("depot.json")), 409, "connectivity:connection.conflict"),
        (faults.other_id("depot", "annex"), 400, "connectivity:id.notsettable"),
        (faults.other_type("depot", "mqtt", "kafka"), 400, "connectivity:connection.configuration.invalid"),
        (faults.unusable("depot", ["no"]), 400, "connectivity:connection.configuration.invalid"),
        (faults.not_opened("depot", "timeout"), 504, "connectivity:connection.failed"),
        (faults.unavailable("full"), 503, "api:store.unavailable"),
        (faults.unavailable("full", may_be_stored=True), 503, "api:store.unavailable"),
        (faults.invalid([LABEL, OTHER]), 409, "acknowledgement:label.not.unique"),
        (faults.invalid([OTHER, LABEL]), 400, "connectivity:connection.uri.invalid"),
    ],
)
def test_a_refusal_has_its_status_and_code(fault: Fault, status: int, code: str) -> None:
    assert (fault.status, fault.error) == (status, code)
    assert fault.description


def test_several_problems_are_all_reported() -> None:
    assert faults.invalid([OTHER]).message == f"{OTHER}."
    assert "1 more" in faults.invalid([OTHER, LABEL]).message


def test_a_message_has_one_full_stop_after_a_problem_that_ends_with_one() -> None:
    sentence = Problem(
        "uri", "nothing", "this field: Address of the broker.", code="connectivity:connection.uri.invalid"
    )
    assert faults.invalid([sentence]).message == f"{sentence}"
    assert faults.invalid([sentence, OTHER]).message == f"{sentence} There is 1 more problem."
