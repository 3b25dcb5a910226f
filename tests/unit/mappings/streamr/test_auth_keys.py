"""Keys of clients and their subjects."""

from __future__ import annotations

import pytest

from mappings.streamr.auth_keys import (
    fingerprint,
    has_lost_key,
    subjects_of,
)

KEYS = {"pump": fingerprint("K"), "pump-too": fingerprint("K"), "lamp": fingerprint("L")}


def test_only_a_subject_of_a_removed_key_loses_it() -> None:
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


def test_a_key_gives_its_holder_an_identity() -> None:
    assert subjects_of("L", KEYS) == frozenset({"streamr:lamp"})
    assert subjects_of("K", KEYS, ["mqtt:plant"]) == frozenset({"mqtt:plant", "streamr:pump", "streamr:pump-too"})


def test_case_s21_without_a_key_one_is_anonymous() -> None:
    assert subjects_of(None, KEYS, ["mqtt:plant"]) == frozenset({"mqtt:plant", "streamr:anonymous"})


@pytest.mark.parametrize("key", ["k", "", "pump", fingerprint("K")])
def test_case_s19_an_unknown_key_gives_no_subjects(key: str) -> None:
    assert subjects_of(key, KEYS, ["mqtt:plant"]) is None
