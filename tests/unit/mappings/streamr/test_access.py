"""Keys, subjects and permissions."""

from __future__ import annotations

import pytest

from mappings.streamr.access import (
    fingerprint,
    has_lost_key,
    permission_of,
    refused,
    refused_as_missing,
    refused_as_unknown,
    subjects_of,
)
from mappings.streamr.requests import All, Disconnect, Publish, Request, Resend, SubscribeRequest, Unsubscribe

KEYS = {"pump": fingerprint("K"), "pump-too": fingerprint("K"), "lamp": fingerprint("L")}
PUBLISH = Publish("tank", "{}")
SUBSCRIBE = SubscribeRequest("tank", 2)
RESEND = Resend("tank", 2, "a", All())


def test_a_key_that_was_taken_away_is_missed_by_its_subject_alone() -> None:
    keys = {"pump": fingerprint("K")}
    given = frozenset({"acme:gateway", "streamr:given"})
    for subjects, is_lost in (
        ({"acme:gateway", "streamr:pump"}, False),
        ({"acme:gateway", "streamr:anonymous"}, False),
        ({"acme:gateway", "streamr:given"}, False),
        ({"acme:gateway", "streamr:gauge"}, True),
        ({"streamr:"}, True),
        (given, False),
    ):
        assert has_lost_key(subjects, given, keys) == is_lost


def test_a_key_makes_its_holder_somebody() -> None:
    assert subjects_of("L", KEYS) == frozenset({"streamr:lamp"})
    assert subjects_of("K", KEYS, ["mqtt:plant"]) == frozenset({"mqtt:plant", "streamr:pump", "streamr:pump-too"})


def test_case_s21_without_a_key_one_is_anonymous() -> None:
    assert subjects_of(None, KEYS, ["mqtt:plant"]) == frozenset({"mqtt:plant", "streamr:anonymous"})


@pytest.mark.parametrize("key", ["k", "", "pump", fingerprint("K")])
def test_case_s19_an_unknown_key_makes_nobody(key: str) -> None:
    assert subjects_of(key, KEYS, ["mqtt:plant"]) is None


@pytest.mark.parametrize(
    ("request_", "permission"),
    [(PUBLISH, "WRITE"), (SUBSCRIBE, "READ"), (RESEND, "READ"), (Unsubscribe("tank"), None), (Disconnect(), None)],
)
def test_case_p17_a_publisher_needs_write_alone_and_a_reader_read(request_: Request, permission: str | None) -> None:
    assert permission_of(request_) == permission


def test_cases_p10_p11_p12_a_publisher_is_told_what_it_lacks() -> None:
    assert refused(PUBLISH).message == "You are not allowed to write to stream tank"
    assert refused_as_missing(PUBLISH).message == "Stream tank not found."
    assert refused_as_unknown(PUBLISH).status == 401
    assert refused_as_unknown(PUBLISH).message == "Authentication failed while trying to publish to stream tank"


@pytest.mark.parametrize("reader", [SUBSCRIBE, RESEND])
def test_cases_s19_s20_r23_a_reader_is_not_told_whether_there_is_a_stream(reader: Request) -> None:
    assert refused(reader) == refused_as_missing(reader) == refused_as_unknown(reader)
    assert refused(reader).status == 403
    assert "stream tank and partition 2" in refused(reader).message


def test_a_request_that_needs_no_permission_is_never_refused_for_one() -> None:
    with pytest.raises(ValueError, match="expected a request that needs a permission"):
        refused(Disconnect())
