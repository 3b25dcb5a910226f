"""The address and the headers of an outbound signal; reply-targets have tests of their own."""

from __future__ import annotations

import msgspec
import pytest

from connectivity.targets.destination import Destination, DestinationTemplate, feature_ids, features_of
from mappings.errors import UnsafeAddress
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import LiveEvent, TwinEvent
from mappings.placeholders.address import AddressPattern
from tests.support.in_process.service import LAMP, NOW
from tests.support.table import each_row

EVENT = LiveEvent(LAMP, "modified", "/features/bulb/properties/on", b"1", {"desk": "4", "bad": "a/#"})


def resolved(address: str, **mapping: str) -> Destination | None:
    names = {name.replace("_", "."): text for name, text in mapping.items()}
    publication = DestinationTemplate(address, names, "site", lambda: NOW)
    return publication.resolve(publication.context(EVENT))


def test_templates_see_the_signal_and_its_connection() -> None:
    found = resolved("{{ connection:id }}/{{ feature:id }}/{{ header:desk }}", path="{{ resource:path }}")
    assert found == Destination("site/bulb/4", {"path": "/features/bulb/properties/on"})


def test_an_address_template_without_a_value_returns_no_address() -> None:
    assert resolved("{{ header:no }}") is None


@pytest.mark.parametrize("mapping", [{}, {"mqtt_topic": "x/{{ header:bad }}"}])
def test_a_header_value_that_changes_the_address_structure_is_refused(mapping: dict[str, str]) -> None:
    with pytest.raises(UnsafeAddress):
        resolved("out/{{ header:bad }}" if not mapping else "out", **mapping)


def test_a_pattern_applies_to_the_key_of_an_address_too() -> None:
    template = DestinationTemplate(
        "out/{{ header:bad }}", {}, "site", lambda: NOW, pattern=AddressPattern("out/**"), key_mark="/"
    )
    assert template.resolve(template.context(EVENT)) == Destination("out/a/#", {})


def test_the_topic_of_mqtt_is_only_a_header_where_addresses_have_keys() -> None:
    template = DestinationTemplate(
        "out/a",
        {"mqtt.topic": "/{{ header:bad }}"},
        "site",
        lambda: NOW,
        pattern=AddressPattern("out/*"),
        key_mark="/",
    )
    assert template.resolve(template.context(EVENT)) == Destination("out/a", {"mqtt.topic": "/a/#"})
    assert (template.is_fixed, template.has_override) == (True, False)


@pytest.mark.parametrize(
    ("address", "mapping", "is_constant"),
    [
        ("out", {"desk": "4", "mqtt_topic": "x"}, True),
        ("out/{{ thing:name }}", {}, False),
        ("out", {"desk": "{{ header:desk }}"}, False),
        ("out", {"mqtt_topic": "x/{{ thing:name }}"}, False),
        ("out", {"seen": "{{ time:now }}"}, False),
        ("out", {"desk": "{{ fn:default('4') }}"}, False),
    ],
)
def test_a_destination_without_expressions_is_resolved_once(
    address: str, mapping: dict[str, str], is_constant: bool
) -> None:
    names = {name.replace("_", "."): text for name, text in mapping.items()}
    template = DestinationTemplate(address, names, "site", lambda: NOW)
    assert template.constant == (resolved(address, **mapping) if is_constant else None)


def test_envelopes_that_share_headers_continue_sharing_them() -> None:
    shared = {"content-type": "x"}
    messages = Destination("out", {"desk": "4"}).outgoing([Envelope(b"1", shared), Envelope(b"2", shared)], 1)
    assert messages[0].envelope.headers is messages[1].envelope.headers
    assert messages[0].envelope.headers == {"content-type": "x", "desk": "4"}


@each_row(
    ("own", "mapped", "payload"),
    [
        ("application/json", "text/plain; charset=ISO-8859-1", '"Grüße"'.encode("latin-1")),
        ("application/json", "text/plain; charset=utf-8", '"Grüße"'.encode()),
        ("application/json", "text/plain", '"Grüße"'.encode()),
        ("application/json", "text/plain; charset=us-ascii", '"Grüße"'.encode()),
        ("application/octet-stream", "text/plain; charset=ISO-8859-1", '"Grüße"'.encode()),
        ("text/plain; charset=utf-16", "text/plain; charset=ISO-8859-1", '"Grüße"'.encode()),
    ],
)
def test_text_is_sent_in_the_charset_of_a_mapped_content_type(own: str, mapped: str, payload: bytes) -> None:
    envelope = Envelope('"Grüße"'.encode(), {"content-type": own})
    (message,) = Destination("out", {"content-type": mapped}).outgoing([envelope], 1)
    assert message.envelope == Envelope(payload, {"content-type": mapped})


def test_a_path_below_features_returns_its_feature_id() -> None:
    paths = ("/features/bulb/properties", "/features", "/attributes/features", None, "//")
    assert [feature_ids(path) for path in paths] == [("bulb",), (), (), (), ()]


LEVEL = TwinEvent(
    EntityId(EntityType.THING, "org.depot7", "truck-19"),
    7,
    "2030-01-15T07:30:00.000000Z",
    "modified",
    "/features/tank/properties/level",
    b"11.5",
    {"correlation-id": "c-1", "Shift": "night", "ditto-originator": "acme:truck"},
    b'{"attributes":{"driver":"Kim","tags":["a","b"]},"features":{"tank":{"properties":{"level":9}}}}',
)
CREATED = msgspec.structs.replace(
    LEVEL,
    action="created",
    path="/",
    value=b'{"features":{"tank":{},"cab":{}},"attributes":{"driver":"Lu"}}',
    extra=None,
)
GONE = msgspec.structs.replace(LEVEL, action="deleted", path="/", value=None, extra=None)


@each_row(
    ("event", "template", "expected"),
    [
        (LEVEL, "{{ thing:id }}", "org.depot7:truck-19"),
        (LEVEL, "out/{{ thing:namespace }}/{{ topic:action }}", "out/org.depot7/modified"),
        (LEVEL, "{{ entity:name }}/{{ thing:name }}", "truck-19/truck-19"),
        (LEVEL, "{{ topic:full }}", "org.depot7/truck-19/things/twin/events/modified"),
        (LEVEL, "{{ topic:entityName }}/{{ topic:group }}", "truck-19/things"),
        (LEVEL, "{{ topic:channel }}/{{ topic:criterion }}/{{ topic:action-subject }}", "twin/events/modified"),
        (LEVEL, "{{ topic:subject }}", None),
        (LEVEL, "{{ resource:type }}{{ resource:path }}", "thing/features/tank/properties/level"),
        (LEVEL, "{{ resource:path | fn:substring-after('/features/') }}", "tank/properties/level"),
        (LEVEL, "{{ feature:id | fn:upper() }}", "TANK"),
        (LEVEL, "{{ header:shift }}", "night"),
        (LEVEL, "{{ header:nope }}", None),
        (LEVEL, "{{ header:correlation-id }}", "c-1"),
        (LEVEL, "{{ request:subjectId }}", "acme:truck"),
        (LEVEL, "{{ connection:id }}", "site"),
        (LEVEL, "{{ time:now }}", "2030-01-15T07:30:00Z"),
        (LEVEL, "{{ thing-json:attributes/driver | fn:default('-') }}", "Kim"),
        (LEVEL, "{{ thing-json:attributes/nobody | fn:default('-') }}", "-"),
        (LEVEL, "{{ thing-json:features/tank/properties/level }}", "11.5"),
        (CREATED, "{{ thing-json:/attributes/driver }}", "Lu"),
        (CREATED, "{{ feature:id }}", "tank"),
        (GONE, "{{ thing-json:attributes/driver }}", None),
        (GONE, "{{ feature:id }}", None),
        (GONE, "{{ thing:id }}{{ resource:path }}", "org.depot7:truck-19/"),
    ],
)
def test_5_2_templates_read_the_fields_of_an_event(event: TwinEvent, template: str, expected: str | None) -> None:
    """As a header and, where it can be one, as an address: without a value nothing is sent."""
    publication = DestinationTemplate("out", {"found": template}, "site", lambda: NOW)
    found = publication.resolve(publication.context(event))
    assert found is not None
    assert found.headers.get("found") == expected
    publication = DestinationTemplate(f"to:{template}", {}, "site", lambda: NOW)
    resolved = publication.resolve(publication.context(event))
    assert (resolved.address if resolved is not None else None) == (f"to:{expected}" if expected is not None else None)


@pytest.mark.parametrize(
    ("path", "value", "features"),
    [
        ("/", b'{"features":{"a":{},"b":{}}}', ("a", "b")),
        ("/", b'{"attributes":{}}', ()),
        ("/", None, ()),
        ("/features", b'{"a":{}}', ("a",)),
        ("/features", b"null", ()),
        ("/features", b'{"{{ ~lamp.*~ }}":null,"fan":null}', ("fan",)),
        ("/", b'{"features":{"{{ ~lamp.*~ }}":null}}', ()),
        ("/features/a", b"{}", ("a",)),
        ("/attributes/features", b'{"features":{"a":{}}}', ()),
    ],
)
def test_an_event_of_the_whole_touches_every_feature_in_it(
    path: str, value: bytes | None, features: tuple[str, ...]
) -> None:
    assert features_of(msgspec.structs.replace(LEVEL, path=path, value=value)) == features
