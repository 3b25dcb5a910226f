"""A client of the Streamr protocol over MQTT 5, which publishes and subscribes without gaps.

    python -m examples.streamr_client tanks --last 5
    python -m examples.streamr_client tanks --publish '{"level": 7}'

`Reader` delivers the messages of a partition once and in order. It detects a gap by the predecessor of a message, and
requests the missed messages. `Client` sends requests and receives frames over the broker, and disconnects by its last will.
"""

from __future__ import annotations

import argparse
import json
import queue
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from paho.mqtt.client import Client as Mqtt
from paho.mqtt.client import MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

OFFSET, PREVIOUS, CONTENT = 5, 6, 8
"""Indexes in a message: [28, stream, partition, timestamp, ttl, offset, previous, 27, content]."""

HEARTBEAT = 600.0
"""Seconds between subscribe requests.

They keep the session, which ends after an hour without a request.
"""

TIMEOUT = 30.0

RETRIED = frozenset({429, 503})
"""Statuses of failed resends to request again.

429: a quota of subscriptions is used up; 503: the service was restarted, or cannot read the messages now.
"""

RETRY_PAUSE = 1.0
"""Seconds before a failed resend is requested again."""

Request = dict[str, Any]
Frame = list[Any]
Message = list[Any]


@dataclass
class Reader:
    """A reader of a partition.

    `first_resend` selects past messages, such as `{"resend_last": 5}`. If it is empty, there are no past messages.
    """

    stream: str
    partition: int = 0
    first_resend: Mapping[str, Any] = field(default_factory=dict)
    last: int | None = None
    _gap_end: int | None = None
    _is_resending: bool = False
    _waiting: list[Message] = field(default_factory=list)

    def subscribe(self) -> Request:
        """The request at the start, after each reconnect, and every `HEARTBEAT` seconds.

        The reader no longer waits for the response to an earlier resend, which may be lost.
        """
        self._is_resending, self._gap_end = False, None
        return {"type": "subscribe", **self._partition_fields}

    def unsubscribe(self) -> Request:
        return {"type": "unsubscribe", **self._partition_fields}

    def take(self, frame: Frame) -> tuple[list[Message], list[Request]]:
        """The messages to deliver after this frame, and the requests to send.

        Types: 0 is a broadcast, 1 a message of a resend, 2 confirms a subscription; 5, 6 and 7 end a resend.
        """
        _, kind, sub, body = frame
        match kind:
            case 0 if body[1:3] == [self.stream, self.partition]:
                self._waiting.append(body)
                return self._deliver_waiting()
            case 1 if sub == self._sub:
                return self._deliver(body), []
            case 2 if body == self._partition_fields and not self._is_resending:
                since = self.first_resend if self.last is None else {"resend_from": self.last + 1}
                return [], [self._resend(since)] if since else []
            case 7 if isinstance(body, dict) and body.get("sub") == self._sub and body.get("status") in RETRIED:
                since = self.first_resend if self.last is None else {"resend_from": self.last + 1}
                return [], [self._resend(since)]
            case 5 | 6 | 7 if isinstance(body, dict) and body.get("sub") == self._sub:
                # The service no longer has the messages that the resend did not contain.
                self._is_resending = False
                if self._gap_end is not None:
                    self.last, self._gap_end = max(self.last or 0, self._gap_end), None
                return self._deliver_waiting()
        return [], []

    def _deliver_waiting(self) -> tuple[list[Message], list[Request]]:
        """Deliver waiting messages up to a gap.

        During a resend, broadcasts wait, so that messages keep their order.
        """
        delivered: list[Message] = []
        while self._waiting and not self._is_resending:
            previous = self._waiting[0][PREVIOUS]
            if self.last is not None and previous is not None and previous > self.last:
                self._gap_end = previous
                return delivered, [self._resend({"resend_from": self.last + 1, "resend_to": previous})]
            delivered += self._deliver(self._waiting.pop(0))
        return delivered, []

    def _deliver(self, message: Message) -> list[Message]:
        if self.last is not None and message[OFFSET] <= self.last:
            return []
        self.last = message[OFFSET]
        return [message]

    def _resend(self, selection: Mapping[str, Any]) -> Request:
        self._is_resending = True
        return {"type": "resend", **self._partition_fields, "sub": self._sub, **selection}

    @property
    def _partition_fields(self) -> dict[str, Any]:
        return {"stream": self.stream, "partition": self.partition}

    @property
    def _sub(self) -> str:
        """The identifier of this reader's resends."""
        return f"{self.stream}/{self.partition}"


class RequestFailed(RuntimeError):
    """The service refused a request, or did not respond in time."""


class Client:
    """A session at the service. It publishes, or it subscribes to a partition.

    `requests` is the topic of the service's source, `responses` the topic of this session. `key` authenticates the client;
    without a key, it is anonymous.
    """

    def __init__(self, host: str, port: int, *, requests: str, responses: str, key: str | None = None) -> None:
        self._requests, self._responses, self._key = requests, responses, key
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        name = f"streamr-{secrets.token_hex(4)}"
        self._mqtt = Mqtt(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._mqtt.on_connect = self._on_connect
        self._mqtt.on_subscribe = lambda *_: self._frames.put(None)
        self._mqtt.on_message = self._on_message
        # If the link is lost, the broker publishes this request.
        will = self._properties(PacketTypes.WILLMESSAGE)
        self._mqtt.will_set(requests, json.dumps({"type": "disconnect"}), 1, properties=will)
        self._mqtt.connect(host, port)
        self._mqtt.loop_start()
        if self._next_frame(TIMEOUT, RequestFailed("the broker did not confirm the subscription")) is not None:
            raise RequestFailed("another client uses this topic for responses")

    def publish(self, stream: str, content: Any, pkey: str | None = None) -> None:
        """Append to a stream; messages with the same `pkey` keep their order. Raises RequestFailed.

        The service does not confirm a publish request. But it executes the requests of a session in order, so the response
        to an empty resend confirms all requests before it.
        """
        fence = secrets.token_hex(4)
        self._send({"type": "publish", "stream": stream, "msg": json.dumps(content), "pkey": pkey})
        self._send({"type": "resend", "stream": stream, "sub": fence, "resend_last": 0})
        silence = RequestFailed(f"no response within {TIMEOUT:.0f} s")
        while (frame := self._next_frame(TIMEOUT, silence)) is None or frame[3].get("sub") != fence:
            if frame is not None and frame[1] == 7:
                raise RequestFailed(frame[3]["error"])

    def follow(self, reader: Reader) -> Generator[Message, None, None]:
        """The messages of a partition in order, until the caller closes the generator. Raises RequestFailed."""
        self._send(reader.subscribe())
        try:
            while True:
                frame = self._next_frame(HEARTBEAT)
                if frame is None:
                    # After a reconnect or a long silence.
                    self._send(reader.subscribe())
                elif frame[1] == 7 and "sub" not in frame[3]:
                    raise RequestFailed(frame[3]["error"])
                else:
                    messages, requests = reader.take(frame)
                    if frame[1] == 7 and requests:
                        time.sleep(RETRY_PAUSE)
                    for request in requests:
                        self._send(request)
                    yield from messages
        finally:
            self._send(reader.unsubscribe())

    def close(self) -> None:
        # If the broker is unavailable, it has published the last will.
        with suppress(RuntimeError):
            self._send({"type": "disconnect"}).wait_for_publish(TIMEOUT)
        self._mqtt.disconnect()
        # The thread ends after the DISCONNECT; paho raises this error if it ends while paho looks for it.
        with suppress(AttributeError):
            self._mqtt.loop_stop()
        # The client's thread may end before it has closed its socket.
        if (socket := self._mqtt.socket()) is not None:
            socket.close()

    def _send(self, request: Request) -> MQTTMessageInfo:
        payload = json.dumps({**request, "authKey": self._key})
        return self._mqtt.publish(self._requests, payload, 1, properties=self._properties(PacketTypes.PUBLISH))

    def _next_frame(self, timeout: float, silence: RequestFailed | None = None) -> Frame | None:
        """The next frame; None after a reconnect or the timeout. If `silence` is given, the timeout raises it."""
        try:
            return self._frames.get(timeout=timeout)
        except queue.Empty:
            if silence is not None:
                raise silence from None
            return None

    def _on_connect(self, *_: object) -> None:
        self._mqtt.subscribe(self._responses, 1)

    def _on_message(self, _client: Mqtt, _userdata: Any, message: MQTTMessage) -> None:
        self._frames.put(json.loads(message.payload))

    def _properties(self, packet: int) -> Properties:
        """Properties with the response topic of this session."""
        properties = Properties(packet)
        properties.ResponseTopic = self._responses
        return properties


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Publish to a stream, or subscribe to it.")
    parser.add_argument("stream", help="name of the stream")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--requests", default="streamr/requests", help="topic of the service's source")
    parser.add_argument("--answers", default=f"streamr/answers/{secrets.token_hex(4)}", help="topic for the responses")
    parser.add_argument("--key", help="key that authenticates the client")
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument(
        "--publish", metavar="JSON", type=json.loads, default=argparse.SUPPRESS, help="publish this content, and stop"
    )
    parser.add_argument("--last", type=int, metavar="N", help="start with the newest N messages")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    options = parser.parse_args(words)
    client = Client(options.host, options.port, requests=options.requests, responses=options.answers, key=options.key)
    try:
        if "publish" in options:
            client.publish(options.stream, options.publish)
            return
        reader = Reader(options.stream, options.partition, {"resend_last": options.last} if options.last else {})
        with closing(client.follow(reader)) as messages:
            for message in islice(messages, options.count):
                print(json.dumps({"offset": message[OFFSET], "content": json.loads(message[CONTENT])}), flush=True)
    except RequestFailed as error:
        raise SystemExit(f"refused: {error}") from None
    except KeyboardInterrupt:
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main()
