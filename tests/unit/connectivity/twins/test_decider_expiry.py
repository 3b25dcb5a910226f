"""Expiring subjects: when they are due in a policy, and the announcements of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.twins.policy_expiry import ExpiryNotice, expire_subjects
from spark_store.records import Snapshot
from tests.support.twin_harness import NOW, OWNER, OWNERS, POLICY, VIEWER, TwinHarness, entry, granting, policy

P = policy(POLICY)
EIGHT = "2030-01-15T08:00:00Z"
AT_EIGHT = "2030-01-15T08:00:00.000000Z"
PATH = f"/entries/VIEW/subjects/{VIEWER}"


def expiring(expiry: str = EIGHT, **announcement: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"type": "t", "expiry": expiry}
    return {**about, "announcement": announcement} if announcement else about


def a_policy(**subjects: Any) -> Snapshot:
    """Return a policy with these subjects; keywords are subjects of `edge:`."""
    harness = TwinHarness()
    view = entry([], {"thing:/": granting("READ")})
    view["subjects"] = {f"edge:{name}": about for name, about in subjects.items()}
    harness.write_policy({"VIEW": view})
    return harness.snapshots[P]


def values_of(announcements: Any) -> list[dict[str, Any]]:
    return [json.loads(announcement.value) for announcement in announcements]


def test_case_60_a_subject_is_deleted_at_its_time() -> None:
    """Each has its own event, at the subject's path; the rest of the policy stays."""
    found = a_policy(viewer=expiring(), other=expiring(), later=expiring("2030-01-15T09:00:00Z"), stays={"type": "t"})
    assert expire_subjects(found, "2030-01-15T07:59:59.999999Z").events == ()
    judged = expire_subjects(found, AT_EIGHT)
    events = [(event.action, event.path, event.value, event.revision, event.headers) for event in judged.events]
    assert events == [
        ("deleted", PATH, None, 2, b"{}"),
        ("deleted", "/entries/VIEW/subjects/edge:other", None, 3, b"{}"),
    ]
    assert {event.timestamp for event in judged.events} == {AT_EIGHT}
    assert judged.snapshot.state is not None
    assert list(judged.snapshot.state["entries"]["VIEW"]["subjects"]) == ["edge:later", "edge:stays"]
    assert (judged.snapshot.revision, judged.next) == (3, "2030-01-15T09:00:00.000000Z")


def test_a_policy_without_expiry_is_not_checked_again() -> None:
    assert expire_subjects(a_policy(viewer={"type": "t"}), NOW).next is None


def test_an_announcement_comes_once_ahead_of_the_expiry() -> None:
    found = a_policy(viewer=expiring(beforeExpiry="20m", requestedAcks={"labels": ["other:seen"], "timeout": "10s"}))
    early = expire_subjects(found, NOW)
    assert (early.announcements, early.next) == ((), "2030-01-15T07:40:00.000000Z")
    due = expire_subjects(found, "2030-01-15T07:40:00.000000Z")
    (announcement,) = due.announcements
    assert (announcement.entity, announcement.name, announcement.subjects) == (P, "subjectDeletion", (VIEWER,))
    assert json.loads(announcement.value) == {"deleteAt": EIGHT, "subjectIds": [VIEWER]}
    assert announcement.headers == {"response-required": False, "requested-acks": ["other:seen"], "timeout": "10s"}
    assert (due.next, due.announced) == (AT_EIGHT, frozenset({ExpiryNotice(VIEWER, EIGHT)}))
    again = expire_subjects(found, "2030-01-15T07:50:00.000000Z", due.announced)
    assert (again.announcements, again.announced) == ((), due.announced)
    assert expire_subjects(found, AT_EIGHT, due.announced).announcements == (), "not asked for at the deletion"
    assert expire_subjects(found, AT_EIGHT, due.announced).announced == frozenset()


def test_a_clock_that_is_set_back_does_not_repeat_an_announcement() -> None:
    found = a_policy(viewer=expiring(beforeExpiry="20m"))
    notices = expire_subjects(found, "2030-01-15T07:45:00.000000Z").announced
    back = expire_subjects(found, NOW, notices)
    assert (back.announcements, back.next, back.announced) == ((), AT_EIGHT, notices)
    assert expire_subjects(found, "2030-01-15T07:45:00.000000Z", back.announced).announcements == ()


def test_a_subject_that_expires_within_the_announcement_period_is_announced_at_once() -> None:
    assert len(expire_subjects(a_policy(viewer=expiring(beforeExpiry="1d")), NOW).announcements) == 1
    assert len(expire_subjects(a_policy(viewer=expiring(beforeExpiry="999999d")), NOW).announcements) == 1


def test_another_expiry_is_announced_again() -> None:
    notices = frozenset({ExpiryNotice(VIEWER, EIGHT)})
    judged = expire_subjects(a_policy(viewer=expiring("2030-01-15T09:00:00Z", beforeExpiry="1d")), NOW, notices)
    assert values_of(judged.announcements) == [{"deleteAt": "2030-01-15T09:00:00Z", "subjectIds": [VIEWER]}]


def test_a_subject_with_an_announcement_is_notified_of_its_deletion() -> None:
    found = a_policy(viewer=expiring(whenDeleted=True), other=expiring(whenDeleted=False))
    assert values_of(expire_subjects(found, AT_EIGHT).announcements) == [{"deleteAt": EIGHT, "subjectIds": [VIEWER]}]


@pytest.mark.parametrize("kept", [{"type": "t"}, expiring("2030-01-15T09:00:00Z", whenDeleted=True)])
def test_an_expiry_that_leaves_the_subject_in_another_entry_sends_no_announcement(kept: dict[str, Any]) -> None:
    harness = TwinHarness()
    view, other = (entry([], {"thing:/": granting("READ")}) for _ in range(2))
    view["subjects"], other["subjects"] = {VIEWER: expiring(whenDeleted=True)}, {VIEWER: kept}
    harness.write_policy({"VIEW": view, "OTHER": other})
    judged = expire_subjects(harness.snapshots[P], AT_EIGHT)
    assert ([event.path for event in judged.events], judged.announcements) == ([PATH], ())
    later = expire_subjects(judged.snapshot, "2030-01-15T09:00:00.000000Z")
    expected = [{"deleteAt": kept["expiry"], "subjectIds": [VIEWER]}] if "expiry" in kept else []
    assert values_of(later.announcements) == expected


def test_announcements_are_spread_over_their_interval() -> None:
    names = [f"n{number}" for number in range(40)]
    spread = {"beforeExpiry": "10m", "randomizationInterval": "10m"}
    moments = {str(expire_subjects(a_policy(**{name: expiring(**spread)}), NOW).next) for name in names}
    assert len(moments) == len(names)
    assert all("2030-01-15T07:40:00" <= moment <= "2030-01-15T07:50:00.000000Z" for moment in moments)
    assert expire_subjects(a_policy(n0=expiring(**spread)), NOW) == expire_subjects(
        a_policy(n0=expiring(**spread)), NOW
    )


@pytest.mark.parametrize(
    ("action", "path", "value"),
    [
        ("delete", PATH, ...),
        ("delete", "/entries/VIEW", ...),
        ("modify", "/entries/VIEW/subjects", {}),
        ("modify", "/entries/VIEW", entry([], {})),
        ("modify", "/entries", {"OWNERS": OWNERS}),
        ("modify", "/", {"entries": {"OWNERS": OWNERS}}),
        ("delete", "/", ...),
    ],
)
def test_a_command_that_removes_a_subject_reports_it(action: str, path: str, value: Any) -> None:
    harness = TwinHarness()
    view = entry([], {"thing:/": granting("READ")})
    view["subjects"] = {
        VIEWER: {"type": "t", "announcement": {"whenDeleted": True}},
        "edge:quiet": {"type": "t", "announcement": {"beforeExpiry": "1h"}},
    }
    harness.write_policy({"VIEW": view})
    decision = harness.send(action, path, value, to=P)
    assert values_of(decision.announcements) == [{"deleteAt": "2030-01-15T07:30:00.250Z", "subjectIds": [VIEWER]}]


def test_a_command_that_keeps_the_subject_sends_no_announcement() -> None:
    harness = TwinHarness()
    view = entry([], {"thing:/": granting("READ")})
    view["subjects"] = {VIEWER: {"type": "t", "announcement": {"whenDeleted": True}}}
    harness.write_policy({"VIEW": view})
    assert harness.send("modify", PATH, {"type": "u", "announcement": {"whenDeleted": True}}, to=P).announcements == ()
    assert harness.send("modify", f"/entries/OWNERS/subjects/{OWNER}", {"type": "u"}, to=P).announcements == ()


@pytest.mark.parametrize(
    ("action", "path", "kept"),
    [("delete", "/entries/VIEW", "OTHER"), ("delete", PATH, "OTHER"), ("modify", "/entries", "RENAMED")],
)
def test_a_command_that_leaves_the_subject_in_another_entry_sends_no_announcement(
    action: str, path: str, kept: str
) -> None:
    harness = TwinHarness()
    view = entry([], {"thing:/": granting("READ")})
    view["subjects"] = {VIEWER: {"type": "t", "announcement": {"whenDeleted": True}}}
    harness.write_policy({"VIEW": view} if kept == "RENAMED" else {"VIEW": view, kept: view})
    value = ... if action == "delete" else {"OWNERS": OWNERS, kept: view}
    assert harness.send(action, path, value, to=P).announcements == ()
    decision = harness.send("delete", f"/entries/{kept}", to=P)
    assert [announcement.subjects for announcement in decision.announcements] == [(VIEWER,)]
