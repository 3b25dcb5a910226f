"""A connection whose sources use the Streamr protocol: a stream, its policy, its clients.

harness = await StreamrHarness.filled()
harness.send("a", subscribe())
await harness.frames("a", 1)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

from mappings.ids import EntityId
from mappings.streamr.auth_keys import fingerprint
from mappings.streams.stream_id import partition_id
from tests.support.in_process.service import ConnectionHarness, command, document, pause, until

KEY, WRITER, OTHER = "K", "W", "O"
"""The keys of clients that may read and write the stream `tank`, only write it, and neither."""

OPERATOR = "acme:operator"
PUBLIC = "commons"
_READ_AND_WRITE = {"grant": ["READ", "WRITE"], "revoke": []}

Frame = list[Any]


def options(**more: Any) -> dict[str, Any]:
    return {
        "streams": {
            "tank": {"policyId": "acme.site:tanks"},
            "tanks": {"policyId": "acme.site:tanks", "partitions": 4},
            "pair": {"policyId": "acme.site:tanks", "partitions": 2},
            "many": {"policyId": "acme.site:tanks", "partitions": 10},
            PUBLIC: {"policyId": "acme.site:tanks"},
            **{f"tank-{kind}": {"policyId": "acme.site:tanks"} for kind in ("mqtt", "mqtt-5", "amqp-091", "kafka")},
        },
        "authKeys": {"pump": fingerprint(KEY), "gauge": fingerprint(WRITER), "nobody": fingerprint(OTHER)},
        **more,
    }


def definition(**more: Any) -> dict[str, Any]:
    return {"tanks": {"mappingEngine": "Streamr", "options": options(**more)}}


def policy() -> dict[str, Any]:
    """Return a policy: key K reads and writes, key W writes, and anyone reads the public stream."""

    def entry(subject: str, **resources: dict[str, Any]) -> dict[str, Any]:
        return {"subjects": {subject: {"type": "test"}}, "resources": resources}

    return {
        "policyId": "acme.site:tanks",
        "entries": {
            "operator": entry(OPERATOR, **{"policy:/": _READ_AND_WRITE, "thing:/": _READ_AND_WRITE}),
            "pump": entry("streamr:pump", **{"stream:/": _READ_AND_WRITE}),
            "gauge": entry("streamr:gauge", **{"stream:/": {"grant": ["WRITE"], "revoke": []}}),
            "public": entry("streamr:anonymous", **{f"stream:/{PUBLIC}": {"grant": ["READ"], "revoke": []}}),
        },
    }


def source(address: str = "in", *subjects: str, **more: Any) -> dict[str, Any]:
    """Return a source whose requests name their reply address."""
    return {
        "addresses": [address],
        "authorizationContext": list(subjects or (OPERATOR,)),
        "payloadMapping": ["tanks"],
        "replyTarget": {"address": "{{ header:reply-to }}"},
        **more,
    }


OWNER_SOURCE = {"addresses": ["ditto"], "authorizationContext": [OPERATOR], "replyTarget": {"address": "out"}}


class StreamrHarness(ConnectionHarness):
    """A connection whose clients are identified by their reply addresses."""

    def __init__(self, *sources: dict[str, Any], **more: Any) -> None:
        """`options` are those of the mapping."""
        mapping = definition(**more.pop("options", {}))
        super().__init__(*(sources or (source(),)), OWNER_SOURCE, mappingDefinitions=mapping, **more)

    @classmethod
    async def filled(cls, *sources: dict[str, Any], messages: int = 0, **more: Any) -> Self:
        """Return a harness with a policy, and `messages` messages in `tank`: `{"n":1}`, `{"n":2}` …"""
        streamr_harness = cls(*sources, **more)
        made = await streamr_harness.ask_ditto(
            command("create", value=policy(), name="tanks").replace(b"things/twin", b"policies")
        )
        assert made["status"] == 201, made
        await streamr_harness.publish(messages)
        streamr_harness.forget()
        return streamr_harness

    async def ask_ditto(self, payload: bytes) -> dict[str, Any]:
        """Return the response to a command of the operator, among messages to others."""
        before = len(self.reported())
        self.deliver(payload, source=len(self.readers) - 1)
        await until(lambda: len(self.reported()) > before)
        return self.reported()[before]

    def reported(self) -> list[dict[str, Any]]:
        """Return the messages to the operator so far."""
        return [json.loads(each.envelope.payload) for each in self.link.published if each.address == "out"]

    async def publish(self, count: int, stream: str = "tank", first: int = 1) -> None:
        """Publish messages, and wait until they are durable."""
        before = len(self.outcomes)
        requests = [publish(json.dumps({"n": number}), stream=stream) for number in range(first, first + count)]
        self.send(None, *requests)
        await until(lambda: len(self.outcomes) == before + count)

    def send(self, address: str | None, *requests: dict[str, Any] | bytes, source: int = 0, **headers: str) -> None:
        """Send requests of the client at this address in one batch; None for no reply address."""
        reply_headers = {} if address is None else {"reply_to": address}
        payloads = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests]
        self.deliver(*payloads, source=source, **reply_headers, **headers)

    def received(self, address: str) -> list[Frame]:
        """Return the frames to an address so far."""
        return [json.loads(each.envelope.payload) for each in self.link.published if each.address == address]

    async def frames(self, address: str, number: int) -> list[Frame]:
        """Wait for exactly `number` frames at an address and return them."""
        await until(lambda: len(self.received(address)) >= number)
        await pause()
        found = self.received(address)
        assert len(found) == number, found
        return found

    async def exchange(
        self, address: str, request: dict[str, Any] | bytes, number: int = 1, **more: Any
    ) -> list[Frame]:
        """Send a request of a client and return the next `number` frames to it."""
        before = len(self.received(address))
        self.send(address, request, **more)
        return (await self.frames(address, before + number))[before:]

    def stored(self, stream: str = "tank", partition: int = 0) -> Sequence[str]:
        """Return the contents of a partition, oldest first."""
        entity: EntityId = partition_id(stream, partition)
        return [json.loads(event.value or b"null") for event in self.history(entity)]


def publish(content: Any = '{"v":1}', key: str | None = KEY, **more: Any) -> dict[str, Any]:
    return {"type": "publish", "stream": "tank", "authKey": key, "msg": content, **more}


def subscribe(key: str | None = KEY, **more: Any) -> dict[str, Any]:
    return {"type": "subscribe", "stream": "tank", "authKey": key, **more}


def unsubscribe(**more: Any) -> dict[str, Any]:
    return {"type": "unsubscribe", "stream": "tank", **more}


def resend(sub: Any = "a", key: str | None = KEY, **more: Any) -> dict[str, Any]:
    return {"type": "resend", "stream": "tank", "authKey": key, "sub": sub, **more}


def subscribed(stream: str = "tank", partition: int = 0) -> Frame:
    return [0, 2, "", {"stream": stream, "partition": partition}]


def unsubscribed(stream: str = "tank", partition: int = 0) -> Frame:
    return [0, 3, "", {"stream": stream, "partition": partition}]


def error(frame: Frame) -> dict[str, Any]:
    """Return the content of an error frame."""
    layer, type, sub, content = frame
    assert (layer, type, sub) == (0, 7, ""), frame
    assert isinstance(content, dict)
    return content


def offsets(frames: Sequence[Frame], type: int = 0) -> list[int]:
    """Return the offsets of the messages in frames of a type."""
    return [frame[3][5] for frame in frames if frame[1] == type]


def on_policy(action: str, path: str = "/", value: Any = ..., name: str = "tanks") -> bytes:
    """Return a command for a policy of the namespace `acme.site`."""
    return document(f"acme.site/{name}/policies/commands/{action}", path, value)
