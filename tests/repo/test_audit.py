"""`make check` looks for known vulnerabilities, and reports packages that it could not check."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools import audit
from tools.audit import Verdict, judge, run_audit

FINE: dict[str, object] = {"name": "a", "version": "1", "vulns": []}
UNKNOWN: dict[str, object] = {"name": "c", "skip_reason": "not found on PyPI"}
WEAK: dict[str, object] = {
    "name": "b",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}, {"id": "X", "fix_versions": []}],
}


def report_of(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_no_known_vulnerability_is_a_pass() -> None:
    assert judge(report_of(FINE), "No known vulnerabilities found") == Verdict(
        "audited: no known vulnerability in 1 packages", passed=True
    )


def test_a_known_vulnerability_fails_and_is_named_with_its_fix() -> None:
    decision = judge(report_of(FINE, WEAK), "Found 2 known vulnerabilities in 1 package")
    assert not decision.passed
    assert decision.text.splitlines() == [
        "known vulnerabilities:",
        "b 2: PYSEC-1, fixed in 3",
        "b 2: X, not fixed yet",
    ]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("", "WARNING: a\nERROR:pip_audit._cli: Could not connect to PyPI's vulnerability feed"),
        ("", ""),
        ("{}", ""),
        ("[]", ""),
        (report_of(), ""),
        (report_of(UNKNOWN), "No known vulnerabilities found"),
        (report_of(UNKNOWN, {"name": "d", "skip_reason": "not found on PyPI"}), "No known vulnerabilities found"),
    ],
)
def test_an_audit_that_did_not_happen_does_not_pass(answer: str, complaint: str) -> None:
    decision = judge(answer, complaint)
    assert not decision.passed
    assert decision.text.startswith("not audited: ")
    assert complaint.rpartition("\n")[2] in decision.text or answer


def test_a_package_that_cannot_be_audited_is_named_and_prevents_a_pass() -> None:
    decision = judge(report_of(FINE, UNKNOWN, {**FINE, "name": "d"}), "No known vulnerabilities found")
    assert not decision.passed
    assert decision.text.splitlines() == [
        "audited: no known vulnerability in 2 packages",
        "not audited, because the database does not know them: c",
    ]


def test_of_many_packages_that_cannot_be_audited_some_are_named() -> None:
    several = ({**UNKNOWN, "name": f"c{number}"} for number in range(audit.MAX_NAMES + 2))
    (line,) = judge(report_of(FINE, *several), "").text.splitlines()[1:]
    assert line.endswith("c9 and 2 more")


def test_a_known_vulnerability_fails_the_audit_even_if_another_package_is_unknown() -> None:
    decision = judge(report_of(WEAK, UNKNOWN), "")
    assert not decision.passed
    assert decision.text.splitlines()[-1] == "not audited, because the database does not know them: c"


def test_an_audit_that_hangs_is_given_up() -> None:
    decision = run_audit([sys.executable, "-c", "import time; time.sleep(600)"], 0.5)
    assert decision == Verdict("not audited: no result after 0.5 s")


def test_without_the_program_nothing_is_audited(tmp_path: Path) -> None:
    assert run_audit([str(tmp_path / "pip-audit")], 5).text.startswith("not audited: ")


def test_a_passed_audit_runs_again_after_the_pins_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], _seconds: float) -> Verdict:
        asked.append(command)
        return judge(report_of(FINE), "")

    pins = tmp_path / "constraints.txt"
    pins.write_text("a==1\n")
    monkeypatch.setattr(audit, "PINS", pins)
    monkeypatch.setattr(audit, "STAMP", tmp_path / "build" / "audited")
    monkeypatch.setattr(audit, "run_audit", answer)
    assert [audit.main(), audit.main()] == [0, 0]
    assert len(asked) == 1
    assert {"--require-hashes", str(pins)} <= set(asked[0])
    assert "--strict" not in asked[0]  # which stops at the first unknown package
    pins.write_text("a==2\n")
    audit.main()
    assert len(asked) == 2


@pytest.mark.parametrize(
    "decision",
    [
        judge("", "no network"),
        judge(report_of(WEAK), ""),
        judge(report_of(FINE, UNKNOWN), ""),
        Verdict("not audited: x"),
    ],
)
def test_a_failed_check_ends_with_1_and_is_not_remembered(
    decision: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "STAMP", tmp_path / "audited")
    monkeypatch.setattr(audit, "run_audit", lambda *_: decision)
    assert audit.main() == 1
    assert not audit.STAMP.exists()
