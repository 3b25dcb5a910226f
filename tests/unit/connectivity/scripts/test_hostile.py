"""Hostile scripts: each ends as a typed error within its limit, without an effect on others.

Every script behaves for the message `good` and does its worst for `bad`. Two connections, each with a script process of its
own: after the bad message the same script maps a good one as if nothing had been, and the other connection has not noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectivity.mapping.script_host import HostedScripts, ScriptHost
from connectivity.mapping.script_protocol import ScriptLimits
from mappings.errors import DecodeError, EncodeError
from mappings.mappers.scripts import Scripts
from mappings.model.envelope import Envelope
from tests.support.table import Table
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.extra("javascript")

LIMITS = ScriptLimits(seconds=0.15, memory=16 << 20, output=256 << 10)
ENDS = 30.0
"""Seconds in which a script with a limit of 0.15 has ended on the busiest machine."""

MOST_RESIDENT = 160 << 10
"""The most KiB that the process of a script with 16 MiB may hold.

Interpreter, engine and copies included.
"""

GOOD = Envelope(b"good")
BAD = Envelope(b"bad")
RESULT = b'{"topic":"fine"}'

TOO_LONG = "ran longer than 150 ms"
TOO_DEEP = "the calls of the script need more than the stack"
NO_MEMORY = "needed more than 16 MiB|out of memory|null|too large|invalid array|too long|ran longer|process ended"

HOSTILE = {
    # time
    "endless loop": ("while (true) {}", TOO_LONG),
    "endless loop that catches everything": ("for (;;) try { for (;;); } catch (e) {} finally {}", TOO_LONG),
    "catastrophic regular expression": ("/(a+)+$/.test('a'.repeat(64) + 'b')", TOO_LONG),
    "native function without end": ("return Array(1e9).join('x')", f"{TOO_LONG}|{NO_MEMORY}"),
    "sorting nothing for ever": ("return new Array(2 ** 31).sort()", TOO_LONG),
    "number with too many digits": ("let n = 10n; for (;;) n *= n", NO_MEMORY),
    "waiting for somebody": ("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)", "cannot block"),
    "slow getter of the result": ("return {get topic() { for (;;); }}", TOO_LONG),
    "slow toJSON": ("return {toJSON() { for (;;); }}", TOO_LONG),
    "sparse array as the result": ("const a = []; a.length = 4e9; return a", "produced 4000000000 messages"),
    "proxy of an endless array": (
        "return new Proxy([], {get: (t, n) => n === 'length' ? 5 : {topic: 'x'.repeat(9e4)}})",
        "more than 262144 bytes",
    ),
    # stack
    "recursion": ("const f = () => f() + 1; f()", TOO_DEEP),
    "recursion through native functions": ("const f = () => [1].map(f); f()", TOO_DEEP),
    "recursion that catches itself": ("const f = () => { try { f() } catch (e) { f() } }; f()", TOO_LONG),
    "deeply nested result": ("let x = {}; for (let i = 0; i < 1e5; i++) x = {x}; return x", f"{TOO_DEEP}|null|deeper"),
    "circular result": ("const x = {}; x.x = x; return x", "circular"),
    # memory
    "strings": ("let s = 'x'; for (;;) s += s + 'y'", NO_MEMORY),
    "many strings": ("const a = []; for (let i = 0;; i++) a.push(`${i}`.repeat(1000))", NO_MEMORY),
    "arrays": ("const a = []; for (;;) a.push(new Array(1000).fill(1))", NO_MEMORY),
    "one large buffer": ("return {topic: new ArrayBuffer(1e9).byteLength}", NO_MEMORY),
    "growing buffers": ("const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1))", NO_MEMORY),
    "objects": ("let o = null; for (;;) o = {o}", NO_MEMORY),
    "regular expression with many captures": ("new RegExp('(a{1,999}){1,999}'.repeat(2000)).test('a'.repeat(1e6))", ""),
    "memory bomb that catches itself": (
        "for (;;) try { const a = []; for (;;) a.push([1, 2, 3]) } catch (e) {}",
        f"{TOO_LONG}|{NO_MEMORY}",
    ),
}
"""Scripts that use much time, stack or memory: each has its own process, whose memory is checked."""

ODD = {
    # output
    "huge output": ("return {topic: 'x'.repeat(1 << 20)}", "more than 262144 bytes"),
    "many outputs": ("return Array.from({length: 1e5}, () => ({}))", "produced 100000 messages"),
    # results
    "a text": ("return 'x'", "a value of type string"),
    "a number": ("return 1", "a value of type number"),
    "a function": ("return () => 1", "a value of type function"),
    "a symbol": ("return Symbol('x')", "a value of type symbol"),
    "a big integer": ("return {value: 1n}", "BigInt"),
    "an array of null": ("return [{}, null]", "null"),
    "an array in an array": ("return [[{}]]", "an array"),
    "toJSON that gives nothing": ("return {toJSON() {}}", "type undefined"),
    "a promise": ("return Promise.resolve({})", "promise"),
    "a promise that is never resolved": ("return new Promise(() => {})", "promise"),
    "getter that throws": ("return {get topic() { throw new Error('mine') }}", "mine"),
    "proxy that throws": ("return new Proxy({}, {ownKeys() { throw new Error('mine') }})", "mine"),
    "revoked proxy": ("const p = Proxy.revocable([], {}); p.revoke(); return p.proxy", "revoked|TypeError"),
    # throwing
    "throws an error": ("throw new Error('mine')", r"Error: mine in mapToDittoProtocolMsg at line 1"),
    "throws null": ("throw null", "null"),
    "throws undefined": ("throw undefined", "undefined"),
    "throws a text with line ends": ("throw 'a\\nb'", "a"),
    "throws a text that is none": ("throw '\\ud800'", ""),
    "throws a symbol": ("throw Symbol('a')", ""),
    "throws an object without a text": ("throw {toString() { throw 1 }}", ""),
    "throws a proxy": ("throw new Proxy({}, {get() { throw 2 }})", ""),
    "throws a very long text": ("throw new Error('x'.repeat(1e6))", "x{200}"),
    "throws an error with a false place": ("const e = new Error('m'); e.stack = 'a'.repeat(1e5); throw e", "m"),
    # escapes
    "constructor escape": ("return this.constructor.constructor('return process')().env", "TypeError|ReferenceError"),
    "global escape": ("return {topic: typeof require + std.getenv('HOME')}", "ReferenceError"),
    "loading a module": ("return import('fs')", "promise"),
    "print": ("print('x')", "ReferenceError"),
}


def script(body: str) -> Scripts:
    return Scripts(
        f"function mapToDittoProtocolMsg(h, text) {{ if (text !== 'good') {{ {body} }} return {{topic: 'fine'}} }}"
    )


@pytest.fixture
async def host() -> AsyncIterator[ScriptHost]:
    made = ScriptHost(LIMITS)
    yield made
    await made.close()


def highest_resident(pid: int) -> int:
    """Return the peak resident memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def mapped(scripts: HostedScripts, envelope: Envelope = GOOD) -> list[bytes]:
    async with asyncio.timeout(ENDS):
        return [each.payload for each in await scripts.incoming(envelope)]


@pytest.mark.parametrize(("body", "reason"), HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_script_ends_as_a_typed_error_and_the_next_message_is_mapped(
    host: ScriptHost, body: str, reason: str
) -> None:
    await fails(host, body, reason)


async def test_an_odd_result_or_error_is_a_typed_error_and_the_next_message_is_mapped(host: ScriptHost) -> None:
    """They share one process, which none of them ends."""
    with Table() as table:
        for name, (body, reason) in ODD.items():
            with table.row(name):
                await fails(host, body, reason)


async def fails(host: ScriptHost, body: str, reason: str) -> None:
    scripts = HostedScripts(script(body), host)
    with pytest.raises(DecodeError, match=f"could not be mapped: .*({reason})") as caught:
        await mapped(scripts, BAD)
    assert caught.value.fault.error == "connectivity:message.mapping.failed"
    assert caught.value.fault.status == 400
    assert len(caught.value.fault.message) < 500
    assert caught.value.fault.message.isprintable()
    if host.pid is not None:
        assert highest_resident(host.pid) < MOST_RESIDENT
    assert await mapped(scripts) == [RESULT]


POLLUTION = {
    "Object.prototype": "Object.prototype.topic = 'evil'; Object.prototype.toJSON = () => ({topic: 'evil'})",
    "Array.prototype": "Array.prototype[0] = {topic: 'evil'}; Array.isArray = () => false; Array.prototype.join = () => ''",
    "JSON": "JSON.stringify = () => '{}'; JSON.parse = () => ({}); globalThis.JSON = null",
    "String.prototype": "String.prototype.split = () => ['evil']; String.fromCharCode = () => 'evil'",
    "a message's __proto__": 'JSON.parse(\'{"__proto__":{"topic":"evil"}}\').__proto__; ({}).__proto__.topic = \'evil\'',
    "the helpers": "Ditto.buildDittoProtocolMsg = () => 'evil'; mapToDittoProtocolMsgWrapper = () => 'evil'",
    "the script itself": "mapToDittoProtocolMsg = () => 'evil'",
    "global variables": "globalThis.evil = true; fine = () => 'evil'",
    "frozen intrinsics": "Object.freeze(Object.prototype); Object.freeze(Array.prototype); Object.freeze(globalThis)",
    "species": "Uint8Array.fromBase64 = () => null; Object.defineProperty(Array, Symbol.species, {value: null})",
}


@pytest.mark.parametrize("body", POLLUTION.values(), ids=POLLUTION)
async def test_a_message_that_pollutes_the_script_environment_does_not_affect_the_next_one(
    host: ScriptHost, body: str
) -> None:
    source = f"""
        const fine = (topic) => Ditto.buildDittoProtocolMsg(topic, ...new Array(5), '/', {{}}, [1, 2].join('+'));
        function mapToDittoProtocolMsg(h, text, bytes) {{
            if (text !== 'good') {{ {body}; return null }}
            if (typeof evil !== 'undefined') throw new Error('evil');
            return [fine(Ditto.arrayBufferToString(bytes))];
        }}"""
    scripts = HostedScripts(Scripts(source), host)
    expected = [b'{"topic":"good","path":"/","headers":{},"value":"1+2"}']
    assert await mapped(scripts) == expected
    with contextlib.suppress(DecodeError):
        # A hostile script may return any result for its own message.
        assert len(await mapped(scripts, BAD)) <= 10
    assert await mapped(scripts) == expected


async def test_other_connections_do_not_wait_for_a_hostile_script() -> None:
    patient, other = ScriptHost(ScriptLimits(seconds=PATIENCE)), ScriptHost(ScriptLimits(seconds=PATIENCE))
    good = HostedScripts(script(""), other)
    hostile = asyncio.create_task(mapped(HostedScripts(script("new Array(2 ** 31).sort()"), patient), BAD))
    try:
        for _ in range(5):
            assert await mapped(good) == [RESULT]
        assert not hostile.done()
    finally:
        await patient.close()
        await other.close()
    with pytest.raises(DecodeError):
        await hostile


async def test_calls_after_a_hostile_one_are_mapped_in_their_order(host: ScriptHost) -> None:
    scripts = HostedScripts(script("new Array(2 ** 31).sort()"), host)
    ended: list[int] = []

    async def one(number: int, envelope: Envelope) -> object:
        try:
            return await mapped(scripts, envelope)
        except DecodeError as error:
            return error.fault.error
        finally:
            ended.append(number)

    envelopes = [GOOD, BAD, GOOD, GOOD, BAD, GOOD]
    outcomes = await asyncio.gather(*(one(number, envelope) for number, envelope in enumerate(envelopes)))
    failed = "connectivity:message.mapping.failed"
    assert outcomes == [[RESULT], failed, [RESULT], [RESULT], failed, [RESULT]]
    assert ended == list(range(6))


@pytest.mark.parametrize("payload", [b"\xff\xfe\x00", b"\x00", "\U0001f600".encode(), b"\xed\xa0\x80"])
async def test_bytes_that_are_no_text_reach_the_script_as_they_are(host: ScriptHost, payload: bytes) -> None:
    source = "mapToDittoProtocolMsg = (h, text, bytes) => ({hex: new Uint8Array(bytes).toHex(), text})"
    scripts = HostedScripts(Scripts(source), host)
    (found,) = await mapped(scripts, Envelope(payload))
    assert f'"hex":"{payload.hex()}"'.encode() in found


async def test_half_a_character_in_a_result_is_a_typed_error_and_a_nul_is_escaped(host: ScriptHost) -> None:
    half = HostedScripts(Scripts("mapToDittoProtocolMsg = () => ({topic: '\\ud800'})"), host)
    with pytest.raises(DecodeError, match="an unpaired surrogate"):
        await mapped(half)
    nul = HostedScripts(Scripts("mapToDittoProtocolMsg = () => ({topic: '\\0'})"), host)
    assert await mapped(nul) == [b'{"topic":"\\u0000"}']


@pytest.mark.parametrize(
    "body",
    [
        "return {textPayload: '\\ud800'}",
        "return {textPayload: 1}",
        "return {}",
        "return {bytePayload: 'x'}",
        "return {textPayload: 'a', contentType: 7}",
        "return {textPayload: 'a', headers: {get a() { throw new Error('mine') }}}",
        "return {textPayload: 'a', headers: {a: 'b\\r\\nc: d'}}",
        "return {textPayload: 'x'.repeat(1 << 20)}",
        "return {bytePayload: new ArrayBuffer(1 << 20)}",
        "for (;;);",
    ],
)
async def test_a_hostile_outgoing_script_is_a_typed_error(host: ScriptHost, body: str) -> None:
    scripts = HostedScripts(Scripts(outgoing=f"function mapFromDittoProtocolMsg() {{ {body} }}"), host)
    with pytest.raises(EncodeError) as caught:
        await scripts.outgoing([Envelope(b'{"topic":"a/b/things/twin/events/modified","path":"/"}')])
    assert caught.value.fault.error == "connectivity:message.mapping.failed"
