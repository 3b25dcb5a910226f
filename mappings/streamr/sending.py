"""Where what is sent live goes on after a restart (Streamr protocol, lifetime of a session).

The protocol knows no demand, and a client that is not sent a message sees that by the predecessor of the next one, so it
asks for what lies between. Therefore a live subscription need not catch up on everything: on a little it does, so that
nobody has to ask, and from much it stays away.
"""

from __future__ import annotations


def resumed_from(last: int | None, missed: int, most: int) -> int | None:
    """After which offset a live subscription goes on after a restart; None for "now".

    `missed` messages came after the `last` one it was sent, and `most` it catches up on. What it does not get, its client
    sees by the next predecessor.
    """
    return last if last is not None and missed <= most else None
