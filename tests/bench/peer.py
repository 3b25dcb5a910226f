"""A WebSocket peer with little cost: it sends a request, and counts messages without parsing.

    python -m tests.bench.peer HOST PORT PATH COUNT [TEXT]

After the connect it sends TEXT, if given. After COUNT messages it prints one JSON line: the seconds between the first and
the last message, and the bytes of the last one. A client library would be slower than the measured service.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from tests.support.websocket_request import upgrade_request

PATIENCE = 120.0
_TEXT, _BINARY = 0x81, 0x82
_LAST_SHORT = 125


def text_frame(text: bytes) -> bytes:
    """Return a text message of a client, masked with zeros."""
    length = bytes([0x80 | len(text)]) if len(text) <= _LAST_SHORT else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + text


def frame_end(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """Return the start and end of the payload of the frame at `start`; None if the frame is incomplete."""
    if len(buffer) < start + 2:
        return None
    length, begin = buffer[start + 1], start + 2
    if length > _LAST_SHORT:
        more = 2 if length == _LAST_SHORT + 1 else 8
        if len(buffer) < begin + more:
            return None
        length, begin = int.from_bytes(buffer[begin : begin + more], "big"), begin + more
    return (begin, begin + length) if begin + length <= len(buffer) else None


def main(host: str, port: int, path: str, count: int, text: str = "") -> int:
    with socket.create_connection((host, port), timeout=PATIENCE) as link:
        link.sendall(upgrade_request(path, f"{host}:{port}"))
        buffer = bytearray()
        while b"\r\n\r\n" not in buffer:
            buffer += link.recv(4096)
        head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
        assert b" 101 " in head, f"found {head!r}, expected to be let in"
        if text:
            link.sendall(text_frame(text.encode()))
        buffer = bytearray(rest)
        seen, first = 0, 0.0
        while chunk := link.recv(1 << 18):
            buffer += chunk
            start = 0
            while (found := frame_end(buffer, start)) is not None:
                begin, end = found
                if buffer[start] in (_TEXT, _BINARY):
                    seen += 1
                    if seen == 1:
                        first = time.perf_counter()
                    if seen == count:
                        print(json.dumps({"seconds": time.perf_counter() - first, "bytes": end - begin}), flush=True)
                        return 0
                start = end
            del buffer[:start]
    return 1


if __name__ == "__main__":
    host, port, path, count, *text = sys.argv[1:]
    sys.exit(main(host, int(port), path, int(count), *text))
