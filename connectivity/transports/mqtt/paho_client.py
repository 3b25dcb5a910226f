"""paho-mqtt without its input and output: bytes in by `feed`, packets out in `unsent`.

paho handles the rare packets (CONNECT, CONNACK, SUBSCRIBE, keep-alive, DISCONNECT, QoS 2). The code
that runs for each message is overridden: paho needs a system call, a dictionary, five locks and a condition variable.
The private names used here belong to the installed version; `test_paho_client.py` checks that they still exist.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from paho.mqtt.client import Client, ConnectFlags, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MessageType, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from connectivity.transports.base import Done, ReaderStatus, ignore_outcome
from connectivity.transports.dialer import handshake_error, reach
from connectivity.transports.mqtt.errors import refused_message
from connectivity.transports.mqtt.properties import MAX_PACKET, MalformedProperty, pack_varint, unpack_varint
from connectivity.transports.mqtt.protocol_version import Publication, ReceivedPublish
from connectivity.transports.tls_layer import TlsSocket

MAX_IDENTIFIER = 65535
PACKET_ROOM = 131_072
"""Bytes of a packet beside its payload: for topic and properties."""

REFUSED = 128
"""Reason codes from this one on are failures."""

UNREPORTED_REFUSALS = {1: 132, 2: 133}
"""Refusals of MQTT 3.1.1 that paho does not report, as reason codes: protocol version, client ID."""

_ONE_BYTE, _TWO_BYTES = 127, 16_383
"""The greatest lengths that take one byte, and two; they are read and written without a call."""

_PUBLISH, _PUBACK, _PUBREC = int(MessageType.PUBLISH), int(MessageType.PUBACK), int(MessageType.PUBREC)
_LENGTH = Struct("!H")
_ACK = Struct("!BBH")


class UnconfirmedMessage(NamedTuple):
    """A sent message: its address, and what receives its outcome."""

    address: str
    done: Done


# | overridden | instead | processor time for a message of 400 bytes |
# |---|---|---|
# | `_packet_queue` | packets are collected and leave in one write per turn of the loop | 2.3 µs → 0.2 µs |
# | `publish` → `send` | no message object, one table of what is unconfirmed | 4.6 µs → 0.9 µs |
# | `loop_read` → `feed` | one large read, packets are cut from it | 9.8 µs → 5.7 µs |
# | `_handle_publish` → `_receive_publish` | no message object, no table of callbacks | 5.7 µs → 1.0 µs |
# | `_handle_pubackcomp` → `feed` | a confirm goes straight to the sender | 13.8 µs → 0.3 µs |
# | `_handle_pubrec`, `_handle_pubrel` | refusals of MQTT 5 end a message; the link acknowledges | correctness |
# | `_handle_connack` | two refusals that paho would answer with another attempt are reported | correctness |
# | `_create_socket_connection` | refused addresses, TCP_NODELAY | correctness |
# | `_ssl_wrap_socket` | a few TLS records in each turn; a failed handshake leaves no socket open | correctness |
#
# In total a published message costs the link 4 to 12 µs, depending on how many are sent together; paho in a thread of its
# own takes 36 to 44 µs (`tests/bench/mqtt_link.py`).
class SansIoPahoClient(Client):
    """One MQTT session. All methods but `connect` are called on the event loop and do not block.

    `on_unsent` is called when `unsent` is no longer empty, `on_arrival` with each message, `on_readers` with what a confirm
    says about the readers of its topic, `on_released` before the last step of a received QoS 2 message.
    """

    def __init__(self, client_id: str, protocol: MQTTProtocolVersion, *, clean_session: bool) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if protocol == MQTTProtocolVersion.MQTTv5 else clean_session,
            protocol=protocol,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self.unsent: list[bytes | bytearray] = []
        self.on_unsent: Callable[[], object] = _nothing
        self.on_arrival: Callable[[ReceivedPublish], None] = _nothing
        self.on_readers: Callable[[str, ReaderStatus], object] = _nothing
        self.on_last_confirm: Callable[[], object] | None = None
        """Called after the confirm that leaves nothing unconfirmed."""
        self.reader_statuses: Mapping[int, ReaderStatus] = MappingProxyType({})
        """The status of readers that the reason code of a confirm reports."""
        self.unconfirmed: dict[int, UnconfirmedMessage] = {}
        """By packet identifier: the messages that the broker has neither taken nor refused."""
        self.on_released: Callable[[], object] = _nothing
        self.is_resumed = False
        """Whether the broker has resumed a session, which may hold incomplete QoS 2 messages."""
        self._is_5 = protocol == MQTTProtocolVersion.MQTTv5
        self._released: dict[int, int] = {}
        """QoS 2 messages after PUBREC, with its reason code; PUBCOMP has no other."""
        self.max_packet = MAX_PACKET
        """The largest packet that is kept, in bytes. Of a larger PUBLISH the payload is skipped."""
        self._tail = bytearray()
        self._needed = 0
        self._oversized: ReceivedPublish | None = None
        self._left = 0
        """Bytes still to skip of the payload of `_oversized`."""

    # ── bytes in ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, data: bytes) -> None:
        """Parse received bytes and call the callbacks; no bytes only excuse the broker for being silent."""
        self._last_bytes_received, self._ping_t = time.monotonic(), 0.0
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed:
                return
            data = bytes(self._tail)
            self._tail.clear()
        start, end = 0, len(data)
        try:
            while start < end and self._sock is not None:
                body = start + 2
                length = data[body - 1] if body <= end else -1
                if length > _ONE_BYTE:
                    # Most messages have a length of two bytes.
                    length = length & 127 | data[body] << 7 if body < end and data[body] <= _ONE_BYTE else -1
                    body += 1
                stop = body + length
                if self._oversized is not None or length < 0 or stop > end:
                    body, stop = self._find_packet(data, start, end)
                head = data[start]
                if not body:
                    if stop == start:
                        self._tail += memoryview(data)[start:]
                        return
                elif head & 0xF0 == _PUBLISH:
                    self._receive_publish(head, data, body, stop)
                elif head & 0xF0 == _PUBACK:
                    if stop - body < 2:
                        raise MalformedProperty("a PUBACK without a packet identifier")
                    mid, reason = data[body] << 8 | data[body + 1], data[body + 2] if stop - body > 2 else 0
                    if reason or self.reader_statuses or self.on_last_confirm is not None:
                        self._confirm(mid, reason)
                    elif (message := self.unconfirmed.pop(mid, None)) is not None:
                        # As in `_confirm`, without a call.
                        message.done(None)
                else:
                    self._receive_rare(head, data[body:stop])
                start = stop
        except (MalformedPacket, MalformedProperty, IndexError, UnicodeDecodeError):
            self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_PROTOCOL)

    def _confirm(self, mid: int, reason: int) -> None:
        """End the message that the broker has taken or refused, with this reason code (0: success)."""
        if (message := self.unconfirmed.pop(mid, None)) is None:
            return
        if (reader_status := self.reader_statuses.get(reason)) is not None:
            self.on_readers(message.address, reader_status)
        message.done(None if reason < REFUSED else refused_message(reason))
        if self.on_last_confirm is not None and not self.unconfirmed:
            self.on_last_confirm()

    def spoke(self) -> None:
        """Record that the packets in `unsent` have been sent."""
        self._last_msg_out = time.monotonic()

    def _find_packet(self, data: bytes, start: int, end: int) -> tuple[int, int]:
        """Return the start and end of the packet's body.

        The start is 0 if nothing is to be handled up to the end: the packet is incomplete, or its payload is skipped.
        """
        if self._oversized is not None:
            return 0, self._skip_payload(self._oversized, start, end)
        try:
            length, body = unpack_varint(data, start + 1)
        except IndexError:
            self._needed = end - start + 1
            return 0, start
        stop = body + length
        if stop <= end:
            return body, stop
        if length <= self.max_packet:
            self._needed = stop - start
            return 0, start
        if data[start] & 0xF0 != _PUBLISH:
            raise MalformedProperty("a packet that is too large")
        if end - body < PACKET_ROOM:
            self._needed = body - start + PACKET_ROOM
            return 0, start
        self._receive_publish(data[start], data, body, end, stop - end)
        return 0, end

    def _receive_rare(self, head: int, body: bytes) -> None:
        """Let paho handle a packet."""
        self._in_packet["command"], self._in_packet["packet"] = head, bytearray(body)
        self._in_packet["remaining_length"] = len(body)
        if (code := self._packet_handle()) > 0:
            self._loop_rc_handle(code)

    def _skip_payload(self, oversized: ReceivedPublish, start: int, end: int) -> int:
        """Skip bytes; deliver the message after the last one, since the broker cannot be answered before."""
        stop = min(end, start + self._left)
        self._left -= stop - start
        if not self._left:
            self._oversized = None
            self.on_arrival(oversized)
        return stop

    def _receive_publish(self, head: int, data: bytes, body: int, stop: int, missing: int = 0) -> None:
        """Deliver a message, or prepare to skip its payload, of which `missing` bytes have not arrived."""
        at = body + 2
        after_topic = at + (data[body] << 8 | data[body + 1])
        qos, mid, properties = head >> 1 & 3, 0, b""
        topic = data[at:after_topic].decode()
        at = after_topic
        if qos:
            mid = data[at] << 8 | data[at + 1]
            at += 2
        if self._is_5:
            length, at = (data[at], at + 1) if data[at] <= _ONE_BYTE else unpack_varint(data, at)
            properties = data[at : at + length]
            at += length
        if at > stop or qos == 3 or not topic:
            # Without a topic it would need a topic alias, which the service does not offer.
            raise MalformedProperty("a PUBLISH that is shorter than its length field says, has QoS 3, or no topic")
        if missing:
            size = stop - at + missing
            self._oversized = ReceivedPublish(topic, b"", qos, bool(head & 1), bool(head & 8), mid, properties, size)
            self._left = missing
            return
        self.on_arrival(ReceivedPublish(topic, data[at:stop], qos, bool(head & 1), bool(head & 8), mid, properties))

    # ── packets out ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _packet_queue(
        self,
        command: int,  # noqa: ARG002
        packet: bytes | bytearray,
        mid: int,  # noqa: ARG002
        qos: int,  # noqa: ARG002
        info: MQTTMessageInfo | None = None,  # noqa: ARG002
    ) -> MQTTErrorCode:
        self.unsent.append(packet)
        if len(self.unsent) == 1:
            self.on_unsent()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def send(self, publication: Publication, address: str = "", done: Done = ignore_outcome) -> None:
        """Put a message to an address into `unsent`.

        `done` receives the broker's answer, which it gives with QoS 1 and 2.
        """
        topic, qos = publication.topic, publication.qos
        head = bytearray((_PUBLISH | qos << 1 | publication.retain,))
        length = 2 + len(topic) + len(publication.properties) + len(publication.payload) + (2 if qos else 0)
        if length <= _ONE_BYTE:
            head.append(length)
        elif length <= _TWO_BYTES:
            head += bytes((length & 127 | 128, length >> 7))
        else:
            head += pack_varint(length)
        head += _LENGTH.pack(len(topic))
        head += topic
        if qos:
            mid = self._last_mid % MAX_IDENTIFIER + 1
            while mid in self.unconfirmed:
                mid = mid % MAX_IDENTIFIER + 1
            self._last_mid = mid
            self.unconfirmed[mid] = UnconfirmedMessage(address, done)
            if qos == 2 and self.is_resumed:
                # A QoS 2 message left incomplete by an earlier link under this identifier would make the broker ignore
                # this one. Releasing an unused identifier does nothing.
                self._send_pubrel(mid)
            head += _LENGTH.pack(mid)
        head += publication.properties
        head += publication.payload
        # As in `_packet_queue`, without a call.
        self.unsent.append(head)
        if len(self.unsent) == 1:
            self.on_unsent()

    def acknowledge(self, mid: int, qos: int) -> None:
        """Acknowledge a message, with QoS 2 by PUBREC, which paho would send too early."""
        self.unsent.append(_ACK.pack(_PUBACK if qos == 1 else _PUBREC, 2, mid))
        # As in `_packet_queue`, without a call.
        if len(self.unsent) == 1:
            self.on_unsent()

    def _handle_connack(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if not self._is_5 and len(packet) == 2 and (reason := UNREPORTED_REFUSALS.get(packet[1])) is not None:
            if self.on_connect is not None:
                code = ReasonCode(PacketTypes.CONNACK, identifier=reason)
                self.on_connect(self, None, ConnectFlags(session_present=False), code, None)  # type: ignore[call-arg, arg-type]
            return MQTTErrorCode.MQTT_ERR_CONN_REFUSED
        return super()._handle_connack()

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        mid, reason = packet[0] << 8 | packet[1], packet[2] if len(packet) > 2 else 0
        if reason >= REFUSED:
            self._confirm(mid, reason)
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        self._released[mid] = reason
        return self._send_pubrel(mid)

    def _handle_pubackcomp(self, cmd: Any) -> MQTTErrorCode:  # noqa: ARG002
        packet = self._in_packet["packet"]
        mid = packet[0] << 8 | packet[1]
        # Since PUBREC the broker has the message, even if it no longer knows its identifier (reason 146).
        if (received := self._released.pop(mid, None)) is not None:
            self._confirm(mid, received)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubrel(self) -> MQTTErrorCode:
        self.on_released()
        packet = self._in_packet["packet"]
        return self._send_pubcomp(packet[0] << 8 | packet[1])

    # ── the socket ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _create_socket_connection(self) -> socket.socket:
        return reach(self._host, self._port, self._connect_timeout)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> TlsSocket:  # type: ignore[override]
        assert self._ssl_context is not None
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(tcp_sock.close)
            wrapped = TlsSocket(tcp_sock, self._ssl_context, self._host)
            try:
                wrapped.do_handshake(self._connect_timeout)
            except OSError as error:
                raise handshake_error(error) from error
            cleanup.pop_all()
        return wrapped

    def drop_socket(self) -> None:
        """Close the socket, if there is one, without DISCONNECT."""
        self._sock_close()


def _nothing(*_: object) -> None:
    pass
