"""A subscriber with little cost: it counts messages of a topic with QoS 0, and parses no payload.

    python -m tests.bench.sink HOST PORT TOPIC COUNT [END]

Prints `ready`, then one JSON line after COUNT messages, or after one that ends with the bytes END (in hexadecimal), or
after a long silence: the seconds between the first and the last message, their number, the bytes of the last one, and the
bytes of all. A client library would be slower than the measured service.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator

PUBLISH, SUBACK = 3, 9
PATIENCE, SILENCE = 120.0, 15.0


def connect_packet() -> bytes:
    client = f"sink-{os.getpid()}".encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client).to_bytes(2, "big") + client
    return bytes([0x10, len(body)]) + body


def subscribe_packet(topic: str) -> bytes:
    name = topic.encode()
    body = b"\x00\x01" + len(name).to_bytes(2, "big") + name + b"\x00"
    return bytes([0x82, len(body)]) + body


def packets(link: socket.socket, ending: bytes = b"") -> Iterator[tuple[int, int, bool]]:
    """Yield the type and length of each received packet, and whether it ends with `ending`."""
    buffer = bytearray()
    while chunk := link.recv(1 << 18):
        buffer += chunk
        start = 0
        while (end := packet_end(buffer, start)) is not None:
            yield buffer[start] >> 4, end - start, bool(ending) and buffer.startswith(ending, end - len(ending))
            start = end
        del buffer[:start]


def packet_end(buffer: bytearray, start: int) -> int | None:
    """Return the end of the packet that begins at `start`; None if the packet is incomplete."""
    length, shift, at = 0, 0, start + 1
    while at < len(buffer):
        length |= (buffer[at] & 127) << shift
        at += 1
        if buffer[at - 1] < 128:
            return at + length if at + length <= len(buffer) else None
        shift += 7
    return None


def main(host: str, port: int, topic: str, count: int, ending: bytes = b"") -> int:
    with socket.create_connection((host, port), timeout=PATIENCE) as link:
        link.sendall(connect_packet() + subscribe_packet(topic))
        seen, size, raw, first, last = 0, 0, 0, 0.0, 0.0
        with contextlib.suppress(TimeoutError):
            for kind, length, is_end in packets(link, ending):
                if kind == SUBACK:
                    print("ready", flush=True)
                elif kind == PUBLISH:
                    seen, size, raw, last = seen + 1, length, raw + length, time.perf_counter()
                    if seen == 1:
                        first = last
                        link.settimeout(SILENCE)
                    if is_end or seen == count:
                        break
    print(json.dumps({"seconds": last - first, "seen": seen, "bytes": size, "raw_bytes": raw}), flush=True)
    return 0 if seen else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), bytes.fromhex("".join(sys.argv[5:]))))
