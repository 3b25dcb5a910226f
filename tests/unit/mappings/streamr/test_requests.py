"""Requests of the Streamr protocol: what each is read as, and how every mistake is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mappings.streamr.errors import RequestRejected
from mappings.streamr.requests import Publish, RequestLimits, Resend, read_request
from mappings.streams.entry import OffsetRange
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row
from tests.support.vectors import streamr as vectors

REQUESTS = vectors.rows("requests")
REFUSED = vectors.rows("refused")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)
MEMBERS = (
    *("stream", "partition", "authKey", "msg", "ts", "pkey", "sub", "version"),
    *("resend_all", "resend_from", "resend_to", "resend_last", "resend_from_time"),
)


@each_row("row", REQUESTS, ids=vectors.case)
def test_a_request_payload_decodes_to_its_request(row: dict[str, Any]) -> None:
    assert read_request(vectors.payload(row)) == vectors.request(row)


@each_row("row", REFUSED, ids=vectors.case)
def test_an_error_is_reported_in_the_format_of_the_protocol(row: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected) as refused:
        read_request(vectors.payload(row))
    fault = refused.value.fault
    assert (fault.error, fault.status, fault.message) == (row["error"], row["status"], row["says"])
    assert {name: value for name, value in refused.value.about._asdict().items() if value is not None} == row["about"]


def test_a_request_of_a_byte_too_many_is_not_even_read() -> None:
    request = b'{"type":"disconnect"}'
    assert read_request(request.ljust(1 << 20))
    with pytest.raises(RequestRejected) as refused:
        read_request(request.ljust((1 << 20) + 1))
    assert (refused.value.status, refused.value.fault.message) == (413, "Request too large")


def test_a_content_of_a_byte_too_many_is_refused() -> None:
    def publish(content: str) -> bytes:
        return json.dumps({"type": "publish", "stream": "tank", "msg": content}).encode()

    limits = RequestLimits(content=8)
    assert read_request(publish('"ééé"'), limits)
    with pytest.raises(RequestRejected, match="Request too large"):
        read_request(publish('"éééx"'), limits)


def test_case_p04_any_text_is_published_where_that_is_wanted() -> None:
    payload = b'{"type":"publish","stream":"tank","msg":"{nope"}'
    assert read_request(payload, accept_non_json=True) == Publish("tank", "{nope")
    thing = b'{"type":"publish","stream":"things/acme:lamp-7","msg":"{nope"}'
    with pytest.raises(RequestRejected, match="content is not JSON"):
        read_request(thing, accept_non_json=True)


def test_a_content_is_kept_to_the_letter() -> None:
    content = ' {"b":1.0,\n"a":1e2, "\\u00e9": "\\/"} '
    found = read_request(json.dumps({"type": "publish", "stream": "tank", "msg": content}).encode())
    assert isinstance(found, Publish)
    assert found.content == content


def test_the_last_value_of_a_duplicate_member_applies() -> None:
    found = read_request(b'{"type":"dance","stream":"tank","sub":1,"resend_from":1,"type":"resend","resend_from":2}')
    assert found == Resend("tank", 0, 1, OffsetRange(2))


@accepts(at_least=3)
@settings(max_examples=examples(300), deadline=None)
@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["publish", "subscribe", "unsubscribe", "resend", "disconnect"]) | JSON},
        optional=dict.fromkeys(MEMBERS, JSON),
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["publish", "subscribe", "unsubscribe"]), "stream": st.just("s"), "msg": st.just("1")},
        optional={"partition": st.integers(), "authKey": st.text()},
    )
)
@example({"type": "resend", "stream": "s", "sub": 1.5, "resend_from": 2.0**60})
def test_any_payload_members_give_a_request_or_a_4xx_error(members: dict[str, Any]) -> None:
    payload = json.dumps(members).encode()
    try:
        read_request(payload)
    except RequestRejected as error:
        refused = error.fault
    else:
        accepted()
        return
    assert 400 <= refused.status < 500
    assert len(refused.message) < 600


@accepts(at_least=1)
@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(REQUESTS), st.data())
def test_a_mutilated_request_is_a_request_or_refused(row: dict[str, Any], data: st.DataObject) -> None:
    payload = bytearray(vectors.payload(row))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
        if not payload:
            break
    try:
        read_request(bytes(payload))
    except RequestRejected as error:
        status = error.status
    else:
        accepted()
        return
    assert status in (400, 401, 403, 404, 429)


def test_no_request_is_a_trap() -> None:
    with at_most(1):
        for bad in (b"[" * 500_000, b'{"type":"publish","stream":"a","ts":"' + b"1" * 500_000 + b'","msg":"1"}'):
            with pytest.raises(RequestRejected):
                read_request(bad)
