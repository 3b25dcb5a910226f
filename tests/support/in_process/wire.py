"""A transport without a socket, for peers of listeners."""

from __future__ import annotations

import asyncio


class Wire(asyncio.Transport):
    """Records the written bytes, whether reading is paused, and how the transport was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_read = True
        self.has_ended = self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def abort(self) -> None:
        self.is_aborted = True
