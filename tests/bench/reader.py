"""A reader of reactive-streams-io at a socket, which reads one stream with unlimited demand.

    python -m tests.bench.reader HOST PORT read|count PUBLISHER LEAST [FILE]

`read` decodes every frame; `count` looks only at the last bytes, after the first LEAST. If FILE is given, the received
bytes are written to it. Prints one JSON line: the seconds between the first and the last bytes of the stream, their
number, and the processor seconds of this process.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import Completed
from mappings.reactive_streams_io.frames import OnComplete, encode
from mappings.reactive_streams_io.limits import UNBOUNDED

PATIENCE = 120.0
CHUNK = 1 << 18
END = encode(OnComplete(1))


def main(host: str, port: int, how: str, publisher: str, least: int, file: str = "") -> int:
    endpoint = Endpoint(EndpointRole.CLIENT, 0.0, extensions=())
    endpoint.subscribe(publisher, UNBOUNDED)
    kept = []
    raw, is_over, first = 0, False, 0.0
    with socket.create_connection((host, port), timeout=PATIENCE) as link:
        link.sendall(endpoint.take())
        spent = time.process_time()
        while not is_over and (chunk := link.recv(CHUNK)):
            first = first or time.perf_counter()
            raw += len(chunk)
            if file:
                kept.append(chunk)
            if how == "count":
                is_over = raw > least and chunk.endswith(END)
            else:
                is_over = any(isinstance(event, Completed) for event in endpoint.receive(chunk, 0.0))
        seconds, spent = time.perf_counter() - first, time.process_time() - spent
    if file:
        Path(file).write_bytes(b"".join(kept))
    print(json.dumps({"seconds": seconds, "raw_bytes": raw, "processor": spent}), flush=True)
    return 0 if is_over else 1


if __name__ == "__main__":
    host, port, how, publisher, least, *file = sys.argv[1:]
    sys.exit(main(host, int(port), how, publisher, int(least), *file))
