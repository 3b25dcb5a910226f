"""Publisher strings: reactive-streams-io, names, and 15.11 as far as no store is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import DecodeError
from mappings.ids import EntityId, EntityType
from mappings.reactive_streams_io.limits import UNBOUNDED
from mappings.reactive_streams_io.publisher_names import (
    PACKS,
    Events,
    History,
    IngestName,
    Name,
    Projection,
    SearchName,
    StreamName,
    SyntheticName,
    parse,
    write,
)
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "org.acme", "lamp-1")
POLICY = EntityId(EntityType.POLICY, "org.acme", "rooms")
HISTORY = "things/org.acme:lamp-1/history"
NOON = 1_893_499_200_000_000_000

VECTORS: list[tuple[str, str, Name]] = [
    ("N01", f"{HISTORY}?from=2&to=4", History(LAMP, 2, 4)),
    ("N02", f"{HISTORY}?from=-2", History(LAMP, -2)),
    ("N02a", f"{HISTORY}?from=1&to=-8", History(LAMP, 1, -8)),
    ("N04", f"{HISTORY}?from=3&follow=true", History(LAMP, 3, follow=True)),
    (
        "N05",
        "things/search?filter=eq(attributes/a,%22x%22)&options=size(2)",
        SearchName('eq(attributes/a,"x")', "size(2)"),
    ),
    ("N06", "things/search?filter=eq(", SearchName("eq(")),
    (
        "N07",
        "streams/tank/0?resend_from=10&resend_to=13",
        StreamName("tank", 0, from_offset=10, to_offset=13, follow=False),
    ),
    ("N08", "streams/tank/0?resend_last=2", StreamName("tank", 0, last=2)),
    ("N09", "streams/tank/9", StreamName("tank", 9)),
    ("N10", "streams/a%2Fb/0", StreamName("a/b", 0)),
    (
        "N12",
        "things/org.acme:lamp-1/events?project=/features/t/properties/value&pack=f64",
        Events(LAMP, projection=Projection("/features/t/properties/value", "f64")),
    ),
    ("all", HISTORY, History(LAMP)),
    (
        "times",
        f"{HISTORY}?from-ts=2030-01-01T12:00:00Z&to-ts=2030-01-01T12:00:00.5Z",
        History(LAMP, after=NOON, before=NOON + 500_000_000),
    ),
    ("projected", f"{HISTORY}?project=/a&pack=i32", History(LAMP, projection=Projection("/a", "i32"))),
    (
        "fields",
        f"{HISTORY}?filter=gt(_revision,3)&fields=value",
        History(LAMP, filter="gt(_revision,3)", fields="value"),
    ),
    (
        "followed",
        f"{HISTORY}?follow=true&extra-fields=attributes/a",
        History(LAMP, follow=True, extra_fields="attributes/a"),
    ),
    ("cbor", f"{HISTORY}?enc=cbor", History(LAMP, encoding="cbor")),
    ("policy", "policies/org.acme:rooms/history?from=2", History(POLICY, 2)),
    ("events", "things/org.acme:lamp-1/events?extra-fields=attributes", Events(LAMP, extra_fields="attributes")),
    ("search", "things/search", SearchName()),
    ("unit", "things/search?namespaces=org.acme&unit=thing", SearchName(namespaces="org.acme", unit="thing")),
    ("resend all", "streams/tank/0?resend_all=true&follow=false", StreamName("tank", 0, all=True, follow=False)),
    ("resend time", "streams/tank/3?resend_from_time=1700000000000", StreamName("tank", 3, since=1_700_000_000_000)),
    ("resend from", "streams/tank/3?resend_from=5", StreamName("tank", 3, from_offset=5)),
    ("ingest", "ingest/telemetry", IngestName("telemetry")),
    ("range", "tck/range?n=3", SyntheticName("range", 3)),
    ("never", "tck/never", SyntheticName("never")),
    ("fail", "tck/fail?after=1", SyntheticName("fail", 1)),
    ("fixed", "tck/fixed?n=3&size=2", SyntheticName("fixed", 3, 2)),
    ("big", "tck/big?bytes=200000", SyntheticName("big", size=200_000)),
    ("literal", "streams/-._~!*'(),:$@;/0", StreamName("-._~!*'(),:$@;", 0)),
    ("umlaut", "streams/%C3%BC%20%25/0", StreamName("ü %", 0)),
]


@each_row(("case", "text", "name"), VECTORS, ids=[case for case, *_ in VECTORS])
def test_a_name_is_read_and_written(case: str, text: str, name: Name) -> None:
    assert parse(text, with_test_publishers=True) == name
    assert write(name) == text


REFUSED = [
    ("N03", f"{HISTORY}?from=1&from-ts=2024-01-01T00:00:00Z", 400, "only one range"),
    ("N11", "streams/tank/0?resend_last=2&resend_from=1", 400, "expected only one"),
    ("nothing", "", 400, "segment ''"),
    ("empty segment", "things//history", 400, "segment ''"),
    ("empty end", "things/search/", 400, "segment ''"),
    ("unknown", "nope", 404, "no publisher 'nope'"),
    ("too long", f"{HISTORY}/x", 404, "no publisher"),
    ("policy events", "policies/org.acme:rooms/events", 404, "no publisher"),
    ("unknown synthetic", "tck/other", 404, "no publisher"),
    ("unknown key", f"{HISTORY}?x=1", 400, "unknown parameter 'x'"),
    ("key of another", "policies/org.acme:rooms/history?filter=x", 400, "'filter'"),
    ("follow a policy", "policies/org.acme:rooms/history?follow=true", 400, "'follow'"),
    ("repeated key", f"{HISTORY}?from=1&from=1", 400, "from twice"),
    ("no value", f"{HISTORY}?from", 400, "expected key=value"),
    ("empty", f"{HISTORY}?", 400, "expected key=value"),
    ("upper case", f"{HISTORY}?From=1", 400, "expected key=value"),
    ("no number", f"{HISTORY}?from=x", 400, "expected a whole number"),
    ("large number", f"{HISTORY}?from=9223372036854775808", 400, "expected a whole number"),
    ("no instant", f"{HISTORY}?from-ts=today", 400, "expected an instant"),
    ("no flag", f"{HISTORY}?follow=1", 400, "expected true or false"),
    ("no id", "things/lamp/history", 400, "expected the id of a thing"),
    ("pack alone", f"{HISTORY}?pack=f64", 400, "found only one of project and pack"),
    ("other pack", f"{HISTORY}?project=/a&pack=u8", 400, "one of i32, i64, f32, f64"),
    ("no pointer", f"{HISTORY}?project=a&pack=f64", 400, "expected a JSON pointer"),
    ("other encoding", f"{HISTORY}?enc=xml", 400, "one of json, cbor"),
    ("other unit", "things/search?unit=all", 400, "one of page, thing"),
    ("negative partition", "streams/tank/-1", 400, "expected a number of at least 0"),
    ("to alone", "streams/tank/0?resend_to=4", 400, "resend_to without resend_from"),
    ("backwards", "streams/tank/0?resend_from=5&resend_to=4", 400, "expected at least 5"),
    ("fraction", "streams/tank/0?resend_last=1.5", 400, "expected a whole number"),
    ("too large", "streams/tank/0?resend_from=9223372036854775808", 400, "number of at most 9223372036854775807"),
    ("long", f"streams/tank/0?resend_from={'9' * 5000}", 400, "number of at most 9223372036854775807"),
    ("too small", "things/o:n/history?from=-9223372036854775808", 400, "number of at least -9223372036854775807"),
    ("end and follow", "streams/tank/0?resend_from=1&resend_to=4&follow=true", 400, "both follow=true and resend_to"),
    ("space", "streams/a b/0", 400, "percent-encoded"),
    ("half an escape", "streams/a%2/0", 400, "percent-encoded"),
    ("no UTF-8", "streams/%C3%28/0", 400, "percent-encoded UTF-8"),
    ("unescaped value", 'things/search?filter="x"', 400, "percent-encoded"),
    ("no count", "tck/range", 400, "n: found nothing"),
    ("no size", "tck/fixed?n=1&size=0", 400, "expected 1 to 65535"),
    ("too big", "tck/big?bytes=999999999", 400, "expected at most"),
]


@each_row(("case", "text", "status", "message"), REFUSED, ids=[case for case, *_ in REFUSED])
def test_a_name_that_is_invalid_is_refused(case: str, text: str, status: int, message: str) -> None:
    with pytest.raises(DecodeError) as error:
        parse(text, with_test_publishers=True)
    assert error.value.status == status
    assert message in error.value.fault.message


def test_test_publishers_exist_only_if_enabled() -> None:
    with pytest.raises(DecodeError) as error:
        parse("tck/range?n=3")
    assert error.value.status == 404


def test_a_plus_sign_is_a_plus_sign() -> None:
    name = parse("things/search?options=sort(+_modified)")
    assert name == SearchName(options="sort(+_modified)")
    assert write(name) == "things/search?options=sort(%2B_modified)"


def test_a_projection_knows_the_size_of_its_elements() -> None:
    assert {pack: Projection("/a", pack).element_size for pack in PACKS} == {"i32": 4, "i64": 8, "f32": 4, "f64": 8}


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
optional = st.none() | texts
whole = st.none() | st.integers(-UNBOUNDED, UNBOUNDED)
count = st.integers(0, UNBOUNDED)
instant = st.none() | st.integers(-62_000_000_000, 250_000_000_000).map(lambda seconds: seconds * 1_000_000_001)
projection = st.none() | st.builds(Projection, texts.map(lambda text: f"/{text}"), st.sampled_from(list(PACKS)))
encoding = st.sampled_from(["json", "cbor"])
resends: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({"all": True}),
    st.fixed_dictionaries({"last": count}),
    st.fixed_dictionaries({"from_offset": count}),
    st.fixed_dictionaries({"since": count}),
)
names = st.one_of(
    st.builds(History, st.just(LAMP), whole, whole, follow=st.booleans(), projection=projection, encoding=encoding),
    st.builds(History, st.just(LAMP), st.none(), st.none(), instant, instant, optional, optional, st.booleans()),
    st.builds(History, st.just(POLICY), whole, whole, encoding=encoding),
    st.builds(Events, st.just(LAMP), optional, optional, optional, projection, encoding),
    st.builds(SearchName, optional, optional, optional, optional, st.sampled_from(["page", "thing"]), encoding),
    st.builds(
        lambda id, partition, resend, follow: StreamName(id, partition, follow=follow, **resend),
        texts, count, resends, st.booleans(),
    ),
    st.builds(lambda id, first: StreamName(id, 0, from_offset=first, to_offset=first, follow=False), texts, count),
    st.builds(IngestName, texts, encoding),
)  # fmt: skip


@given(names)
def test_a_written_name_parses_to_the_same_name(name: Name) -> None:
    written = write(name)
    assert written.isascii()
    assert parse(written) == name


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(
    st.text(max_size=60)
    | st.text("/?&=%+abc0", max_size=60).map(lambda text: f"things/search?{text}")
    | st.builds(str.__add__, st.sampled_from([text for _, text, _ in VECTORS]), st.sampled_from(["", "0", "&a=1", "%"]))
)
def test_any_text_is_a_name_or_refused(text: str) -> None:
    refused = None
    try:
        name = parse(text, with_test_publishers=True)
    except DecodeError as error:
        refused = error.fault
    if refused is None:
        accepted()
        assert parse(write(name), with_test_publishers=True) == name
    else:
        assert refused.status in (400, 404)
        assert len(refused.message) < 500
