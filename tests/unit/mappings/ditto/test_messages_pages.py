"""Pages of a search as messages."""

from __future__ import annotations

import json

from mappings.ditto.messages import next_envelopes
from mappings.model.signals import Next, SubscriptionKind


def test_a_page_is_taken_as_it_is_and_the_headers_are_shared() -> None:
    headers = {"correlation-id": "r-1", "if-match": "*", "mine": "1"}
    pages = [b'[{"n":1.50,"b":"\\u0041"}]', b"[{},{}]"]
    first, second = next_envelopes(
        Next(SubscriptionKind.SEARCH, 'k"1', None, headers, pages, {"correlation-id": "s-1"})
    )
    assert b'"items":[{"n":1.50,"b":"\\u0041"}]}}' in first.payload
    assert json.loads(second.payload) == {
        "topic": "_/_/things/twin/search/next",
        "headers": {"correlation-id": "r-1", "mine": "1", "content-type": "application/json"},
        "path": "/",
        "value": {"subscriptionId": 'k"1', "items": [{}, {}]},
    }
    assert first.headers is second.headers


def test_no_pages_are_no_messages() -> None:
    assert next_envelopes(Next(SubscriptionKind.SEARCH, "k", None, {}, [], {})) == []
