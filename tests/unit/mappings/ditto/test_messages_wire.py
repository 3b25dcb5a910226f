"""Members that all written messages share."""

from __future__ import annotations

import json

import msgspec
import pytest

from mappings.ditto.messages import WrittenMessage, json_bytes, transport_headers
from mappings.errors import EncodeError


def test_a_message_has_only_the_members_that_it_was_given() -> None:
    assert json.loads(json_bytes(WrittenMessage("a/b", {}, "/"))) == {"topic": "a/b", "headers": {}, "path": "/"}


def test_a_value_of_null_is_a_value() -> None:
    assert json_bytes(WrittenMessage("t", {"a": 1}, "/", msgspec.Raw(b"null"), status=200)) == (
        b'{"topic":"t","headers":{"a":1},"path":"/","value":null,"status":200}'
    )


def test_texts_are_escaped() -> None:
    text = 'say "hi" \\ \n ä'
    assert json.loads(json_bytes(WrittenMessage(text, {}, text, timestamp=text))) == {
        "topic": text,
        "headers": {},
        "path": text,
        "timestamp": text,
    }


def test_the_transport_gets_the_correlation_id_where_there_is_one() -> None:
    assert transport_headers({"correlation-id": "c-1", "mine": "1"}) == {
        "content-type": "application/vnd.eclipse.ditto+json",
        "correlation-id": "c-1",
    }
    assert transport_headers({}) == {"content-type": "application/vnd.eclipse.ditto+json"}


@pytest.mark.parametrize("value", [object(), "\ud800", {1.5j: 1}], ids=["object", "surrogate", "key"])
def test_a_value_that_json_cannot_represent_raises_an_encode_error(value: object) -> None:
    with pytest.raises(EncodeError):
        json_bytes({"a": value})
