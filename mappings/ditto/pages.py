"""The elements of a search: each page becomes one `next` message (Ditto protocol, search, next).

A page is a JSON array already, so what is left for it is one join of bytes. All envelopes of a batch share what is written
around a page, and one mapping of transport headers.
"""

from __future__ import annotations

from mappings.ditto.wire import JSON, json_bytes, transport_headers
from mappings.envelope import Envelope
from mappings.headers import echoed
from mappings.signals import Next
from mappings.topic import topic_of


def page_envelopes(signal: Next) -> list[Envelope]:
    """One envelope for each page, in order."""
    start = b'{"topic":%b,"headers":%b,"path":"/","value":{"subscriptionId":%b,"items":' % (
        json_bytes(str(topic_of(signal))),
        json_bytes({**echoed(signal.headers), "content-type": JSON}),
        json_bytes(signal.key),
    )
    headers = transport_headers(signal.headers)
    return [Envelope(b"%b%b}}" % (start, page), headers) for page in signal.elements]
