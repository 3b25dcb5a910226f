"""The end of a paho client whose thread `loop_start` has started."""

from __future__ import annotations

import contextlib

from paho.mqtt.client import Client


def end_client(client: Client) -> None:
    """Disconnect, wait until the client's thread has ended, and close its socket."""
    client.disconnect()
    # The library looks for its thread, then waits for it; the thread may have ended in between.
    with contextlib.suppress(AttributeError):
        client.loop_stop()
    # The thread may end before it closes the socket.
    if (link := client.socket()) is not None:
        link.close()
