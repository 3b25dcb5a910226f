"""Where a signal goes and with which headers; what a reply-target makes of it is told in the tests of outbound."""

from __future__ import annotations

import pytest

from connectivity.publication import Publication, Resolved, feature_ids
from mappings.envelope import Envelope
from mappings.errors import UnsafeAddress
from mappings.signals import LiveEvent
from tests.connectivity.site import LAMP, NOW

EVENT = LiveEvent(LAMP, "modified", "/features/bulb/properties/on", b"1", {"desk": "4", "bad": "a/#"})


def resolved(address: str, **mapping: str) -> Resolved | None:
    names = {name.replace("_", "."): text for name, text in mapping.items()}
    publication = Publication(address, names, "site", lambda: NOW)
    return publication.resolve(publication.context(EVENT))


def test_templates_see_the_signal_and_its_connection() -> None:
    found = resolved("{{ connection:id }}/{{ feature:id }}/{{ header:desk }}", path="{{ resource:path }}")
    assert found == Resolved("site/bulb/4", {"path": "/features/bulb/properties/on"})


def test_an_address_without_a_value_is_none() -> None:
    assert resolved("{{ header:no }}") is None


@pytest.mark.parametrize("mapping", [{}, {"mqtt_topic": "x/{{ header:bad }}"}])
def test_what_would_be_another_address_is_refused(mapping: dict[str, str]) -> None:
    with pytest.raises(UnsafeAddress):
        resolved("out/{{ header:bad }}" if not mapping else "out", **mapping)


def test_envelopes_that_share_headers_go_on_sharing_them() -> None:
    shared = {"content-type": "x"}
    messages = Resolved("out", {"desk": "4"}).outgoing([Envelope(b"1", shared), Envelope(b"2", shared)], 1)
    assert messages[0].envelope.headers is messages[1].envelope.headers
    assert messages[0].envelope.headers == {"content-type": "x", "desk": "4"}


def test_a_path_leads_into_a_feature_or_into_none() -> None:
    paths = ("/features/bulb/properties", "/features", "/attributes/features", None, "//")
    assert [feature_ids(path) for path in paths] == [("bulb",), (), (), (), ()]
