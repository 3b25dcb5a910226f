"""Messages for the thing `vase-1`: invalid ones with their errors, and unusual valid ones."""

from __future__ import annotations

import json
from typing import Any

from tests.support.connection_documents import topic
from tests.support.dice import dice

MODIFY = topic("vase-1", "commands/modify").encode()
STREAM = topic("vase-1", "streaming/request")
MEBIBYTE = 1 << 20


def value(text: bytes) -> bytes:
    """Return a modify of an attribute with this JSON text as its value."""
    return b'{"topic":"%s","path":"/attributes/odd","value":%s}' % (MODIFY, text)


def headers(text: bytes) -> bytes:
    """Return a modify with this JSON text as its headers."""
    return b'{"topic":"%s","path":"/attributes/odd","headers":%s,"value":1}' % (MODIFY, text)


def about(topic: str, path: str = "/", **more: Any) -> bytes:
    return json.dumps({"topic": topic, "path": path, **more}).encode()


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BAD: dict[str, tuple[bytes, int, str]] = {
    "empty payload": (b"", 400, "connectivity:message.mapping.failed"),
    "random bytes": (dice("random bytes").randbytes(4000), 400, "json.invalid"),
    "one zero byte": (b"\x00", 400, "json.invalid"),
    "cut off": (value(b"1")[:-3], 400, "json.invalid"),
    "two documents": (value(b"1") * 2, 400, "json.invalid"),
    "byte order mark": (b"\xef\xbb\xbf" + value(b"1"), 400, "json.invalid"),
    "another encoding": (value(b"1").decode().encode("utf-16"), 400, "json.invalid"),
    "an array": (b"[1,2,3]", 400, "json.invalid"),
    "null": (b"null", 400, "json.invalid"),
    "a string": (b'"topic"', 400, "json.invalid"),
    "an empty object": (b"{}", 400, "json.field.missing"),
    "no path": (b'{"topic":"%s","value":1}' % MODIFY, 400, "json.field.missing"),
    "no topic": (b'{"path":"/","value":1}', 400, "json.field.missing"),
    "topic is a number": (b'{"topic":7,"path":"/"}', 400, "json.invalid"),
    "path is null": (b'{"topic":"%s","path":null}' % MODIFY, 400, "json.field.missing"),
    "headers are an array": (headers(b"[1]"), 400, "json.invalid"),
    "ten megabytes": (value(b'"%s"' % (b"x" * (10 * MEBIBYTE))), 413, "connectivity:message.toolarge"),
    "ten megabytes of noise": (b"\xff" * (10 * MEBIBYTE), 413, "connectivity:message.toolarge"),
    "a thousand deep": (value(nested(1000)), 400, "json.invalid"),
    "half a million deep": (value(nested(500_000)), 400, "json.invalid"),
    "just too deep": (value(nested(201)), 400, "json.invalid"),
    "NaN": (value(b"NaN"), 400, "json.invalid"),
    "Infinity": (value(b"-Infinity"), 400, "json.invalid"),
    "beyond a double": (value(b"1e999"), 400, "json.invalid"),
    "beyond 64 bits": (value(b"9223372036854775808"), 400, "json.invalid"),
    "far beyond 64 bits": (value(b"1" * 5000), 400, "json.invalid"),
    "below 64 bits": (value(b"[-9223372036854775809]"), 400, "json.invalid"),
    "half a character": (value(b'"\\ud800"'), 400, "json.invalid"),
    "halves the wrong way round": (value(b'{"\\udc00\\ud800":1}'), 400, "json.invalid"),
    "no UTF-8": (value(b'"\xff\xfe"'), 400, "json.invalid"),
    "UTF-8 that is too long": (value(b'"\xc0\xaf"'), 400, "json.invalid"),
    "UTF-8 of half a character": (value(b'"\xed\xa0\x80"'), 400, "json.invalid"),
    "U+0000 in a string": (value(b'"a\\u0000b"'), 400, "json.invalid"),
    "U+0000 in a key": (value(b'{"a\\u0000b":1}'), 400, "json.key.invalid"),
    "a bare control character": (value(b'"a\nb"'), 400, "json.invalid"),
    "unknown topic": (about("acme.site/vase-1/things/twin/commands/patch"), 400, "protocoladapter:unknown.topicpath"),
    "no topic at all": (about(""), 400, "protocoladapter:unknown.topicpath"),
    "a topic of slashes": (about("/" * 5000), 400, "protocoladapter:unknown.topicpath"),
    "an event": (about(topic("vase-1", "events/modified")), 400, "protocoladapter:unknown.topicpath"),
    "a search of what is live": (about("_/_/things/live/search/subscribe"), 400, "protocoladapter:unknown.topicpath"),
    "a response": (about(MODIFY.decode(), status=200), 422, "protocoladapter:illegal.adaptable"),
    "an id of a thousand characters": (about(topic("x" * 1000, "commands/retrieve")), 400, "things:id.invalid"),
    "a namespace with spaces": (about("a b/vase-1/things/twin/commands/retrieve"), 400, "things:id.invalid"),
    "unknown path": (about(MODIFY.decode(), "/foo", value=1), 400, "protocoladapter:unknown.path"),
    "empty part in a path": (about(MODIFY.decode(), "/attributes//a", value=1), 400, "json.pointer.invalid"),
    "no value": (about(MODIFY.decode(), "/attributes/odd"), 400, "json.invalid"),
    "an unknown demand": (about(STREAM, value={"subscriptionId": "x", "demand": {}}), 400, "json.invalid"),
    "empty correlation id": (headers(b'{"correlation-id":""}'), 400, "header.invalid"),
    "response-required is a word": (headers(b'{"response-required":"maybe"}'), 400, "header.invalid"),
    "if-match without quotes": (headers(b'{"if-match":"rev:1"}'), 400, "header.invalid"),
    "negative timeout": (headers(b'{"timeout":"-5"}'), 400, "timeout.invalid"),
    "version beyond 32 bits": (headers(b'{"version":4294967296}'), 400, "header.invalid"),
    "a header of eight kilobytes": (headers(b'{"big":"%s"}' % (b"x" * 8192)), 431, "headers.too.large"),
    "two thousand headers": (
        headers(json.dumps({f"h{number}": number for number in range(2000)}).encode()),
        431,
        "headers.too.large",
    ),
}

ODD: dict[str, tuple[bytes, Any]] = {
    "duplicate keys: the last one counts": (value(b'{"a":1,"a":2}'), {"a": 2}),
    "the largest integer": (value(b"9223372036854775807"), 9223372036854775807),
    "deep, but not too deep": (value(nested(190)), json.loads(nested(190))),
    "a character beyond the plane": (value(b'"\\ud83d\\ude00"'), "\U0001f600"),
    "white space everywhere": (b" \n\t" + value(b" [ 1 , 2 ] ") + b"\r\n", [1, 2]),
    "unknown members": (value(b"7")[:-1] + b',"payload":{},"":null}', 7),
    "headers of every type": (headers(b'{"a":1.5,"b":null,"c":{"d":[true]},"":"e","__proto__":{}}'), 1),
    "forged headers": (headers(b'{"ditto-originator":"root:root","ditto-reply-target":99,"read-subjects":"x"}'), 1),
}
