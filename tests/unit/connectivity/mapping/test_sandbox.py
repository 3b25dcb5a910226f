"""One run of a script: its environment, its results, and its errors.

The engine runs in the test process, so these scripts are well-behaved; `test_hostile.py` has the others.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from connectivity.mapping.sandbox import Sandbox, ScriptError
from connectivity.mapping.script_protocol import ScriptLimits
from tests.support.table import each_row

EVENT = {
    "topic": "org.acme/pump-7/things/twin/events/modified",
    "headers": {"content-type": "application/json"},
    "path": "/features/tank/properties/level",
    "value": 42,
    "revision": 3,
}


def incoming(source: str, payload: bytes = b"", *, libraries: tuple[str, ...] = (), **members: Any) -> Any:
    """Return the results for a message."""
    argument = {
        "headers": {},
        "text": payload.decode("utf-8", "replace"),
        "binary": base64.b64encode(payload).decode(),
        "contentType": None,
        **members,
    }
    sandbox = Sandbox(ScriptLimits(seconds=20.0))
    return json.loads(sandbox.run((source,), libraries, "incoming", json.dumps(argument)))


def outgoing(source: str, message: Any = EVENT) -> Any:
    return json.loads(Sandbox(ScriptLimits(seconds=20.0)).run((source,), (), "outgoing", json.dumps(message)))


def evaluated(expression: str, *libraries: str) -> Any:
    """Return the value of an expression in a script."""
    (found,) = incoming(f"mapToDittoProtocolMsg = () => ({{value: {expression}}})", libraries=libraries)
    return found.get("value")


def test_a_script_gets_headers_text_bytes_and_content_type() -> None:
    source = """
        function mapToDittoProtocolMsg(headers, textPayload, bytePayload, contentType) {
            return {headers, textPayload, bytes: [...new Uint8Array(bytePayload)], contentType};
        }"""
    (found,) = incoming(source, "ä".encode(), headers={"a": "b"}, contentType="text/plain")
    assert found == {"headers": {"a": "b"}, "textPayload": "ä", "bytes": [195, 164], "contentType": "text/plain"}


@pytest.mark.parametrize(
    ("result", "results"),
    [
        ("null", []),
        ("undefined", []),
        ("[]", []),
        ("{a: 1}", [{"a": 1}]),
        ("[{a: 1}, {b: undefined, c: null}]", [{"a": 1}, {"c": None}]),
        ("new (class { a = 1; get b() { return 2 } })", [{"a": 1}]),
        ("{toJSON: () => ({a: 1})}", [{"a": 1}]),
    ],
)
def test_nothing_one_or_several_may_be_returned(result: str, results: list[Any]) -> None:
    assert incoming(f"const mapToDittoProtocolMsg = () => ({result})") == results


@pytest.mark.parametrize("size", [1, 1000, 8192, 100_000, 1_000_000])
def test_results_of_every_size_are_complete(size: int) -> None:
    """The engine keeps joined strings as trees."""
    source = f"mapToDittoProtocolMsg = () => [{{a: 'x'.repeat({size}) + 'é'}}, {{b: 1}}]"
    assert incoming(source) == [{"a": "x" * size + "é"}, {"b": 1}]


@pytest.mark.parametrize(
    "declaration", ["function F(m) {B}", "const F = (m) => {B}", "let F = (m) => {B}", "F = (m) => {B}"]
)
def test_the_wrapper_may_be_replaced_for_any_declaration(declaration: str) -> None:
    source = declaration.replace("F", "mapToDittoProtocolMsgWrapper").replace("B", "return {whole: Object.keys(m)}")
    assert incoming(source) == [{"whole": ["headers", "textPayload", "bytePayload", "contentType"]}]


def test_an_outgoing_script_gets_the_message_in_parts() -> None:
    source = """
        function mapFromDittoProtocolMsg(...parts) {
            return Ditto.buildExternalMsg({n: 1, list: [1], none: null, text: 'a'}, JSON.stringify(parts), null, 'text/csv');
        }"""
    (found,) = outgoing(source)
    assert json.loads(found["text"]) == [
        "org.acme",
        "pump-7",
        "things",
        "twin",
        "events",
        "modified",
        "/features/tank/properties/level",
        {"content-type": "application/json"},
        42,
        None,
        None,
    ]
    assert found["headers"] == {"n": "1", "list": "[1]", "text": "a"}
    assert found["contentType"] == "text/csv"
    assert found["binary"] is None


@pytest.mark.parametrize(
    ("topic", "parts"),
    [
        ("a/b/things/live/messages/x/y", ["a", "b", "things", "live", "messages", "x/y"]),
        ("a/b/policies/commands/modify", ["a", "b", "policies", "none", "commands", "modify"]),
        ("a/b/things/twin/errors", ["a", "b", "things", "twin", "errors", None]),
    ],
)
def test_a_topic_is_split_and_joined_again(topic: str, parts: list[str | None]) -> None:
    source = """
        function mapFromDittoProtocolMsg(...parts) {
            const again = Ditto.buildDittoProtocolMsg(...parts);
            return {textPayload: JSON.stringify({parts: parts.slice(0, 6), topic: again.topic})};
        }"""
    (found,) = outgoing(source, {**EVENT, "topic": topic})
    assert json.loads(found["text"]) == {"parts": parts, "topic": topic}


@pytest.mark.parametrize(
    "payload",
    ["new Uint8Array([1, 2]).buffer", "new Uint8Array([0, 1, 2]).subarray(1)", "[1, 2]", "new Uint16Array([513])"],
)
def test_bytes_may_be_a_buffer_a_typed_array_or_numbers(payload: str) -> None:
    (found,) = outgoing(f"mapFromDittoProtocolMsg = () => Ditto.buildExternalMsg({{}}, 'text', {payload})")
    assert (found["binary"], found["text"], found["contentType"]) == ("AQI=", None, None)


def test_the_outgoing_wrapper_gets_the_whole_message() -> None:
    source = "mapFromDittoProtocolMsgWrapper = (m) => ({textPayload: `${m.topic} ${m.revision}`})"
    assert outgoing(source)[0]["text"] == "org.acme/pump-7/things/twin/events/modified 3"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("Ditto.arrayBufferToString(new Uint8Array([72, 228]).buffer)", "Hä"),
        ("Ditto.arrayBufferToString(new Uint8Array(100000).fill(65).buffer).length", 100_000),
        ("[...new Uint8Array(Ditto.stringToArrayBuffer('Hä'))]", [72, 228]),
        ("Ditto.buildDittoProtocolMsg('a', 'b', 'things', 'twin', 'commands', 'modify', '/', {}, 1, 2, 3)",
         {"topic": "a/b/things/twin/commands/modify", "path": "/", "headers": {}, "value": 1, "status": 2, "extra": 3}),
        ("Ditto.buildDittoProtocolMsg('a', 'b', 'policies', 'none', 'commands', 'modify').topic",
         "a/b/policies/commands/modify"),
        ("Object.keys(Ditto).length", 5),
        ("typeof dcodeIO", "undefined"),
    ],
)  # fmt: skip
def test_helpers(expression: str, value: Any) -> None:
    assert evaluated(expression) == value


def test_the_byte_buffer_helper_names_the_option_that_it_needs() -> None:
    with pytest.raises(ScriptError, match=r"Ditto\.asByteBuffer needs the option loadBytebufferJS"):
        evaluated("Ditto.asByteBuffer(new ArrayBuffer(1))")


BUFFER = "Ditto.asByteBuffer(Ditto.stringToArrayBuffer('\\x08\\xbd\\0\\x01ab'))"


@each_row(
    ("expression", "value"),
    [
        (f"{BUFFER}.toHex()", "08bd00016162"),
        (f"parseInt({BUFFER}.skip(2).toHex(), 16)", 0x00016162),
        (f"{BUFFER}.readInt()", 0x08BD0001),
        (f"{BUFFER}.LE().readUint16()", 0xBD08),
        (f"{BUFFER}.readInt16(4)", 0x6162),
        (f"(b => [b.readShort(), b.offset, b.remaining(), b.skip(2).readString(2)])({BUFFER})", [0x08BD, 2, 4, "ab"]),
        (f"dcodeIO.ByteBuffer.fromBase64({BUFFER}.toBase64()).toHex()", "08bd00016162"),
        ("dcodeIO.ByteBuffer.fromUTF8('äb😀').readUTF8String(2)", "äb"),
        ("dcodeIO.ByteBuffer.fromUTF8('äb').readUTF8String(2, dcodeIO.ByteBuffer.METRICS_BYTES)", "ä"),
        ("dcodeIO.ByteBuffer.fromHex('ffff').toBinary().length", 2),
        ("new dcodeIO.ByteBuffer(1).writeInt32(1).writeDouble(0.5).writeString('ä').flip().toHex()",
         "000000013fe0000000000000c3a4"),
        ("dcodeIO.ByteBuffer.concat(['a', new Uint8Array([66])]).toUTF8()", "aB"),
        ("dcodeIO.ByteBuffer.wrap('0a0b', 'hex').mark(1).reset().readByte()", 11),
        ("new dcodeIO.ByteBuffer().writeInt64(-2).flip().readInt64()", -2),
        ("dcodeIO.ByteBuffer.wrap(new ArrayBuffer(3)).toString()", "ByteBuffer(offset=0,limit=3,capacity=3)"),
        (f"{BUFFER}.slice(1, 3).toArrayBuffer().byteLength", 2),
        (f"{BUFFER}.clear().append('zz').toHex(0, 4)", "7a7a0001"),
    ],
)  # fmt: skip
def test_byte_buffers(expression: str, value: Any) -> None:
    assert evaluated(expression, "bytebuffer") == value


def test_reading_beyond_the_end_of_a_byte_buffer_is_an_error() -> None:
    with pytest.raises(ScriptError, match="expected 8 bytes from 0 on"):
        evaluated(f"{BUFFER}.readDouble()", "bytebuffer")


@each_row(
    ("expression", "value"),
    [
        ("dcodeIO.Long.fromString('9223372036854775807').add(1).toString()", "-9223372036854775808"),
        ("dcodeIO.Long.fromString('-ff', 16).toNumber()", -255),
        ("new dcodeIO.Long(-1, -1, true).toString()", "18446744073709551615"),
        ("dcodeIO.Long.fromBits(1, 1).toNumber()", 4294967297),
        ("dcodeIO.Long.fromNumber(7).div(2).mul(3).sub(1).toInt()", 8),
        ("dcodeIO.Long.MIN_VALUE.isNegative() && dcodeIO.Long.ZERO.lt(dcodeIO.Long.ONE)", True),
        ("dcodeIO.Long.fromInt(-1).shru(60).toString(2)", "1111"),
        ("{long: dcodeIO.Long.fromNumber(5)}", {"long": 5}),
        ("dcodeIO.ByteBuffer.fromHex('ffffffffffffffff').readUint64().toString()", "18446744073709551615"),
        (
            "new dcodeIO.ByteBuffer().writeLong(dcodeIO.Long.fromString('4294967296')).flip().toHex()",
            "0000000100000000",
        ),
    ],
)
def test_long_numbers(expression: str, value: Any) -> None:
    assert evaluated(expression, "long", "bytebuffer") == value


def test_both_scripts_of_a_definition_share_a_scope() -> None:
    sources = "const twice = (n) => 2 * n", "mapFromDittoProtocolMsg = () => ({textPayload: `${twice(2)}`})"
    found = Sandbox(ScriptLimits(seconds=20.0)).run(sources, (), "outgoing", json.dumps(EVENT))
    assert json.loads(found)[0]["text"] == "4"


def test_a_message_leaves_nothing_for_the_next_one() -> None:
    sandbox = Sandbox(ScriptLimits(seconds=20.0))
    source = "let seen = 0; mapFromDittoProtocolMsg = () => ({textPayload: `${++seen}`})"
    for _ in range(3):
        sandbox.prepare()
        found = sandbox.run((source,), (), "outgoing", json.dumps(EVENT))
        assert json.loads(found)[0]["text"] == "1"


def test_json_as_deep_as_messages_may_be_is_read_and_written() -> None:
    deep = "[" * 200 + "]" * 200
    assert incoming("mapToDittoProtocolMsg = (h, t) => ({value: JSON.parse(t)})", deep.encode()) == [
        {"value": json.loads(deep)}
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("function mapToDittoProtocolMsg() {\n  return none.a;\n}",
         r"ReferenceError: none is not defined in mapToDittoProtocolMsg at line 2, column \d+"),
        ("let x = ;", r"SyntaxError: .* at line 1, column \d+"),
        ("", "ReferenceError: mapToDittoProtocolMsg is not defined"),
        ("mapToDittoProtocolMsg = () => { throw 'a\\u0007b' }", "a b"),
        ("mapToDittoProtocolMsg = () => { throw null }", "needed more than 32 MiB of memory, or threw null"),
        ("mapToDittoProtocolMsg = () => 1", "found as a result a value of type number, expected an object"),
    ],
)  # fmt: skip
def test_an_error_is_reported_in_one_line_with_its_position(source: str, reason: str) -> None:
    with pytest.raises(ScriptError, match=reason):
        incoming(source)


@pytest.mark.parametrize(
    ("source", "directions"),
    [
        ("function mapToDittoProtocolMsg() {}", ["incoming"]),
        ("const mapToDittoProtocolMsgWrapper = () => {}", ["incoming"]),
        ("let mapFromDittoProtocolMsg = () => {}", ["outgoing"]),
        ("mapFromDittoProtocolMsgWrapper = () => {}; function mapToDittoProtocolMsg() {}", ["incoming", "outgoing"]),
        ("function mapToDittoProtocolMessage() {}", []),
    ],
)
def test_a_check_finds_the_functions_that_a_script_has(source: str, directions: list[str]) -> None:
    sandbox = Sandbox(ScriptLimits(seconds=20.0))
    assert [d for d in ("incoming", "outgoing") if sandbox.run((source,), (), "check", d)] == directions
