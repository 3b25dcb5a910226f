"""Stored sessions are loaded unchanged."""

from __future__ import annotations

import pytest

from mappings.streamr.sessions import PersistedItem, PersistedResend, PersistedSubscription, pack, unpack

OWNERS = frozenset({"acme:yard"})


@pytest.mark.parametrize(
    "kept",
    [
        PersistedSubscription(
            "tank-9", 3, OWNERS, ("streamr:pump", "acme:yard"), frozenset({None, "a"}), {"device": "ü"}
        ),
        PersistedSubscription("things/acme.site:tank", 0, frozenset(), (), frozenset(), {}),
        PersistedResend("tank-9", 0, "a", OWNERS, {"device": "7"}, "c-1"),
        PersistedResend("tank-9", 0, 0, OWNERS, {}, None),
        PersistedResend("tank-9", 255, 1.5, OWNERS, {}, ""),
    ],
)
def test_packing_and_unpacking_a_row_keeps_its_value_and_types(kept: PersistedItem) -> None:
    found = unpack(pack(kept))
    assert found == kept
    assert type(found) is type(kept)
    if isinstance(found, PersistedResend) and isinstance(kept, PersistedResend):
        assert type(found.sub) is type(kept.sub)


@pytest.mark.parametrize(
    "packed", [b"", b"\x00", b"\x91\xa3odd", pack(PersistedResend("s", 0, "a", OWNERS, {}, None))[:-1]]
)
def test_bytes_of_no_known_format_are_a_value_error(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(packed)
