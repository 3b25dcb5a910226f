"""A client of the Streamr protocol over MQTT 5: it publishes, has messages sent again, follows a stream, and misses none.

    python -m examples.streamr_client tanks --last 5
    python -m examples.streamr_client tanks --publish '{"level": 7}'

What a client has to do by itself is in `Reader`: messages of one partition each once and in order, a gap noticed by what a
message says of its predecessor and asked for. `Client` says and hears over the broker. It leaves by its last will, too.
"""

from __future__ import annotations

import argparse
import json
import queue
import secrets
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
"""Where they stand in a message: [28, stream, partition, timestamp, ttl, offset, previous, 27, content]."""

HEARTBEAT = 600.0
"""Seconds. A session without requests ends after an hour; to subscribe again is harmless, and brings what was missed."""

PATIENCE = 30.0

Request = dict[str, Any]
Frame = list[Any]
Message = list[Any]


@dataclass
class Reader:
    """Follows one partition. `wanted` is the option of the first resend: `{"resend_last": 5}`; empty: only what is new."""

    stream: str
    partition: int = 0
    wanted: Mapping[str, Any] = field(default_factory=dict)
    last: int | None = None
    _gap_ends: int | None = None
    _asking: bool = False
    _waiting: list[Message] = field(default_factory=list)

    def subscribe(self) -> Request:
        """What to say at first, after every reconnect, and now and then. An answer that was lost is waited for no longer."""
        self._asking, self._gap_ends = False, None
        return {"type": "subscribe", **self.place}

    def unsubscribe(self) -> Request:
        return {"type": "unsubscribe", **self.place}

    def take(self, frame: Frame) -> tuple[list[Message], list[Request]]:
        """The messages whose turn it is because of a frame, and what to ask for.

        0 is a broadcast, 1 what a resend brings, 2 says that we are subscribed; 5, 6 and 7 end a resend.
        """
        _, kind, sub, said = frame
        match kind:
            case 0 if said[1:3] == [self.stream, self.partition]:
                self._waiting.append(said)
                return self._go_on()
            case 1 if sub == self._sub:
                return self._give(said), []
            case 2 if said == self.place and not self._asking:
                since = self.wanted if self.last is None else {"resend_from": self.last + 1}
                return [], [self._resend(since)] if since else []
            case 5 | 6 | 7 if isinstance(said, dict) and said.get("sub") == self._sub:
                # What it has not brought is not there any more: to ask again would bring nothing either.
                self._asking = False
                if self._gap_ends is not None:
                    self.last, self._gap_ends = max(self.last or 0, self._gap_ends), None
                return self._go_on()
        return [], []

    def _go_on(self) -> tuple[list[Message], list[Request]]:
        """Give what waits, up to a gap. During a resend everything waits, so that nothing overtakes it."""
        given: list[Message] = []
        while self._waiting and not self._asking:
            previous = self._waiting[0][PREVIOUS]
            if self.last is not None and previous is not None and previous > self.last:
                self._gap_ends = previous
                return given, [self._resend({"resend_from": self.last + 1, "resend_to": previous})]
            given += self._give(self._waiting.pop(0))
        return given, []

    def _give(self, message: Message) -> list[Message]:
        if self.last is not None and message[OFFSET] <= self.last:
            return []
        self.last = message[OFFSET]
        return [message]

    def _resend(self, selection: Mapping[str, Any]) -> Request:
        self._asking = True
        return {"type": "resend", **self.place, "sub": self._sub, **selection}

    @property
    def place(self) -> dict[str, Any]:
        return {"stream": self.stream, "partition": self.partition}

    @property
    def _sub(self) -> str:
        """What the answers to our resends are known by."""
        return f"{self.stream}/{self.partition}"


class Refused(RuntimeError):
    """The service does not do what it was asked for, or says nothing."""


class Client:
    """A session of its own at the service: whoever reads the topic `answers`. It publishes, or it follows a stream.

    `key` says who we are; with None we are anybody.
    """

    def __init__(self, host: str, port: int, *, requests: str, answers: str, key: str | None = None) -> None:
        self._requests, self._answers, self._key = requests, answers, key
        self._heard: queue.Queue[Frame | None] = queue.Queue()
        name = f"streamr-{secrets.token_hex(4)}"
        self._mqtt = Mqtt(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._mqtt.on_connect = self._on_connect
        self._mqtt.on_subscribe = lambda *_: self._heard.put(None)
        self._mqtt.on_message = self._on_message
        # Whoever is cut off leaves all the same.
        farewell = self._properties(PacketTypes.WILLMESSAGE)
        self._mqtt.will_set(requests, json.dumps({"type": "disconnect"}), 1, properties=farewell)
        self._mqtt.connect(host, port)
        self._mqtt.loop_start()
        if self._hear(PATIENCE, Refused("the broker does not let us read")) is not None:
            raise Refused("somebody else is answered here")

    def publish(self, stream: str, content: Any, pkey: str | None = None) -> None:
        """Append to a stream; messages with the same `pkey` keep their order. Raises Refused.

        Nothing is said of a message that was taken. But the requests of a session are carried out one after the other, so
        that the answer to a resend of nothing says that everything before it was.
        """
        fence = secrets.token_hex(4)
        self._ask({"type": "publish", "stream": stream, "msg": json.dumps(content), "pkey": pkey})
        self._ask({"type": "resend", "stream": stream, "sub": fence, "resend_last": 0})
        silence = Refused(f"no answer within {PATIENCE:.0f} s")
        while (frame := self._hear(PATIENCE, silence)) is None or frame[3].get("sub") != fence:
            if frame is not None and frame[1] == 7:
                raise Refused(frame[3]["error"])

    def follow(self, reader: Reader) -> Generator[Message, None, None]:
        """The messages of a partition in order, for as long as they are taken. Raises Refused."""
        self._ask(reader.subscribe())
        try:
            while True:
                frame = self._hear(HEARTBEAT)
                if frame is None:
                    # The broker knows us again after a while without it, or it has been silent for long.
                    self._ask(reader.subscribe())
                elif frame[1] == 7 and "sub" not in frame[3]:
                    raise Refused(frame[3]["error"])
                else:
                    given, asked = reader.take(frame)
                    for request in asked:
                        self._ask(request)
                    yield from given
        finally:
            self._ask(reader.unsubscribe())

    def close(self) -> None:
        # Where the broker is away, it has said our last will.
        with suppress(RuntimeError):
            self._ask({"type": "disconnect"}).wait_for_publish(PATIENCE)
        self._mqtt.disconnect()
        self._mqtt.loop_stop()
        # The client's thread may end before it has closed its socket.
        if (link := self._mqtt.socket()) is not None:
            link.close()

    def _ask(self, request: Request) -> MQTTMessageInfo:
        said = json.dumps({**request, "authKey": self._key})
        return self._mqtt.publish(self._requests, said, 1, properties=self._properties(PacketTypes.PUBLISH))

    def _hear(self, patience: float, silence: Refused | None = None) -> Frame | None:
        """The next frame; None after a reconnect, or after a silence that is no error."""
        try:
            return self._heard.get(timeout=patience)
        except queue.Empty:
            if silence is not None:
                raise silence from None
            return None

    def _on_connect(self, *_: object) -> None:
        self._mqtt.subscribe(self._answers, 1)

    def _on_message(self, _client: Mqtt, _userdata: Any, message: MQTTMessage) -> None:
        self._heard.put(json.loads(message.payload))

    def _properties(self, packet: int) -> Properties:
        """Where the answer is to go."""
        properties = Properties(packet)
        properties.ResponseTopic = self._answers
        return properties


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Publish to a stream, or follow it.")
    parser.add_argument("stream")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--requests", default="streamr/requests", help="the topic of the service's source")
    parser.add_argument("--answers", default=f"streamr/answers/{secrets.token_hex(4)}", help="the topic that we read")
    parser.add_argument("--key", help="the key that says who we are")
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument(
        "--publish", metavar="JSON", type=json.loads, default=argparse.SUPPRESS, help="append this, and end"
    )
    parser.add_argument("--last", type=int, metavar="N", help="begin with the newest N messages")
    parser.add_argument("--count", type=int, metavar="N", help="end after N messages")
    chosen = parser.parse_args(words)
    client = Client(chosen.host, chosen.port, requests=chosen.requests, answers=chosen.answers, key=chosen.key)
    try:
        if "publish" in chosen:
            client.publish(chosen.stream, chosen.publish)
            return
        reader = Reader(chosen.stream, chosen.partition, {"resend_last": chosen.last} if chosen.last else {})
        with closing(client.follow(reader)) as messages:
            for message in islice(messages, chosen.count):
                print(json.dumps({"offset": message[OFFSET], "content": json.loads(message[CONTENT])}), flush=True)
    except Refused as error:
        raise SystemExit(f"refused: {error}") from None
    except KeyboardInterrupt:
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main()
