"""Decodes frames from bytes in pieces of any size (rsio, frames, packing and limits).

A frame is decoded when it is complete. Until then its bytes wait, and are not examined before the least needed number has
arrived, so pieces of one byte cost no more than a large one. A length is checked against its limit when it is read: at most
one frame of the largest size and one piece wait.

`allowed` has the codes that are valid now; the caller sets it during the handshake. `sizes` has the element size of each
stream by the last `onSubscribe` of its ID: it outlives cancel and end, because elements without length may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from mappings.errors import ProtocolError
from mappings.reactive_streams_io.errors import VERSION, ProtocolViolation, broken, unsupported
from mappings.reactive_streams_io.frames import (
    CORE,
    HELLOS,
    LAYOUTS,
    FieldEncoding,
    Frame,
    IncompleteFrame,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    read_varint,
)
from mappings.reactive_streams_io.limits import MAX_HELLO_EXTENSIONS, MAX_ID, MIN_TOKEN_LENGTH, EndpointLimits


class Decoder:
    """Decodes the bytes of one peer. `feed` returns frames; after a ProtocolError nothing can be decoded."""

    __slots__ = ("_limits", "_needed", "_readers", "_waiting", "allowed", "expected_hello", "sizes")

    def __init__(
        self, limits: EndpointLimits, allowed: Collection[int], expected_hello: int, sizes: dict[int, int] | None = None
    ) -> None:
        self._limits = limits
        self._waiting = bytearray()
        self._needed = 1
        self.allowed = allowed
        self.expected_hello = expected_hello
        self.sizes: dict[int, int] = {} if sizes is None else sizes
        self._readers: dict[FieldEncoding, Callable[[bytes, int, int], tuple[Any, int]]] = {
            FieldEncoding.VERSION: _version,
            FieldEncoding.LONG: _long,
            FieldEncoding.ID: _id,
            FieldEncoding.IDS: _ids,
            FieldEncoding.SIZE: self._size,
            FieldEncoding.NAME: self._name,
            FieldEncoding.TEXT: self._text,
            FieldEncoding.PART: self._part,
            FieldEncoding.TOKEN: self._token,
            FieldEncoding.DATA: self._data,
        }

    @property
    def waiting(self) -> int:
        """The bytes of an incomplete frame."""
        return len(self._waiting)

    def feed(self, raw: bytes) -> Iterator[Frame]:
        """Yield the complete frames one by one: `allowed` and `sizes` apply to the next one.

        Raises ProtocolError for invalid bytes, after the frames before them.
        """
        if self._waiting:
            self._waiting += raw
            if len(self._waiting) < self._needed:
                return
            raw = bytes(self._waiting)
            self._waiting.clear()
        at = 0
        while at < len(raw):
            try:
                frame, behind = self._read(raw, at)
            except IncompleteFrame as short:
                self._waiting += memoryview(raw)[at:]
                self._needed = short.needed - at
                return
            at = behind
            yield frame

    def _read(self, raw: bytes, start: int) -> tuple[Frame, int]:
        code = raw[start]
        if code not in self.allowed:
            raise self._refused(code)
        if code == 0x82:
            frame, at = self._on_next(raw, start)
        elif code == 0x83:
            frame, at = self._on_next_packed(raw, start)
        else:
            frame, at = self._by_table(raw, start)
        if at - start > self._limits.frame:
            raise broken(
                ProtocolViolation.FRAME_TOO_LARGE, f"{at - start} bytes, expected at most {self._limits.frame}"
            )
        return frame, at

    def _by_table(self, raw: bytes, start: int) -> tuple[Frame, int]:
        layout = LAYOUTS[raw[start]]
        values = []
        at = start + 1
        for shape in layout.fields:
            value, at = self._readers[shape](raw, at, start)
            values.append(value)
        frame = layout.kind(*values)
        if isinstance(frame, OnSubscribe):
            self.sizes[frame.subscriber] = frame.element_size
        return frame, at

    def _on_next(self, raw: bytes, start: int) -> tuple[Frame, int]:
        subscriber, at = _id(raw, start + 1, start)
        size = self._known_size(subscriber)
        if not size:
            size, at = read_varint(raw, at)
            self._check_frame_size(size, at - start)
        behind = at + size
        if behind > len(raw):
            raise IncompleteFrame(behind)
        return OnNext(subscriber, raw[at:behind]), behind

    def _on_next_packed(self, raw: bytes, start: int) -> tuple[Frame, int]:
        subscriber, at = _id(raw, start + 1, start)
        size = self._known_size(subscriber)
        if not size:
            raise broken(ProtocolViolation.PACKED_WITHOUT_SIZE, f"one for the id {subscriber}")
        count, at = read_varint(raw, at)
        if not count:
            raise broken(ProtocolViolation.PACKED_NOTHING, f"one for the id {subscriber}")
        self._check_frame_size(count * size, at - start)
        behind = at + count * size
        if behind > len(raw):
            raise IncompleteFrame(behind)
        return OnNextPacked(subscriber, [raw[place : place + size] for place in range(at, behind, size)]), behind

    def _known_size(self, subscriber: int) -> int:
        size = self.sizes.get(subscriber)
        if size is None:
            raise broken(ProtocolViolation.NO_ELEMENT_SIZE, f"the id {subscriber}")
        return size

    def _check_frame_size(self, length: int, before: int) -> None:
        if before + length > self._limits.frame:
            raise broken(
                ProtocolViolation.FRAME_TOO_LARGE, f"{before + length} bytes, expected at most {self._limits.frame}"
            )

    def _read_bounded(
        self, raw: bytes, at: int, violation: ProtocolViolation, most: int, least: int = 0
    ) -> tuple[bytes, int]:
        length, at = read_varint(raw, at)
        if not least <= length <= most:
            raise broken(violation, f"{length} bytes, expected {least} to {most}")
        if at + length > len(raw):
            raise IncompleteFrame(at + length)
        return raw[at : at + length], at + length

    def _name(self, raw: bytes, at: int, start: int) -> tuple[str, int]:
        length, at = read_varint(raw, at)
        self._check_frame_size(length, at - start)
        behind = at + length
        if behind > len(raw):
            raise IncompleteFrame(behind)
        return _utf_8(raw[at:behind]), behind

    def _text(self, raw: bytes, at: int, start: int) -> tuple[str, int]:  # noqa: ARG002
        found, at = self._read_bounded(raw, at, ProtocolViolation.TEXT_TOO_LONG, self._limits.text)
        return _utf_8(found), at

    def _part(self, raw: bytes, at: int, start: int) -> tuple[bytes, int]:  # noqa: ARG002
        return self._read_bounded(raw, at, ProtocolViolation.PART_TOO_LARGE, self._limits.part)

    def _token(self, raw: bytes, at: int, start: int) -> tuple[bytes, int]:  # noqa: ARG002
        return self._read_bounded(raw, at, ProtocolViolation.BYTES_OUT_OF_BOUNDS, self._limits.token, MIN_TOKEN_LENGTH)

    def _data(self, raw: bytes, at: int, start: int) -> tuple[bytes, int]:  # noqa: ARG002
        return self._read_bounded(raw, at, ProtocolViolation.BYTES_OUT_OF_BOUNDS, self._limits.ping)

    def _size(self, raw: bytes, at: int, start: int) -> tuple[int, int]:  # noqa: ARG002
        size, at = read_varint(raw, at)
        if size > self._limits.element_size:
            raise broken(
                ProtocolViolation.ELEMENT_SIZE_TOO_LARGE, f"{size}, expected at most {self._limits.element_size}"
            )
        return size, at

    def _refused(self, code: int) -> ProtocolError:
        if self.expected_hello in self.allowed:
            wrong = code in HELLOS
            return broken(
                ProtocolViolation.HELLO_OF_THE_WRONG_KIND if wrong else ProtocolViolation.HELLO_MISSING,
                f"code 0x{code:02x}",
            )
        if code in HELLOS:
            repeated = code == self.expected_hello
            return broken(
                ProtocolViolation.HELLO_REPEATED if repeated else ProtocolViolation.HELLO_OF_THE_WRONG_KIND,
                f"code 0x{code:02x}",
            )
        known = code in LAYOUTS and code not in CORE
        return broken(ProtocolViolation.NOT_IN_FORCE if known else ProtocolViolation.UNKNOWN_CODE, f"code 0x{code:02x}")


def _version(raw: bytes, at: int, start: int) -> tuple[int, int]:  # noqa: ARG001
    if at >= len(raw):
        raise IncompleteFrame(at + 1)
    # The rest is in the format of that version.
    if raw[at] != VERSION:
        raise unsupported(raw[at])
    return raw[at], at + 1


def _long(raw: bytes, at: int, start: int) -> tuple[int, int]:  # noqa: ARG001
    return read_varint(raw, at)


def _id(raw: bytes, at: int, start: int) -> tuple[int, int]:  # noqa: ARG001
    found, at = read_varint(raw, at)
    if found > MAX_ID:
        raise broken(ProtocolViolation.OUT_OF_RANGE, f"the id {found}, expected at most {MAX_ID}")
    return found, at


def _ids(raw: bytes, at: int, start: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(raw, at)
    if count > MAX_HELLO_EXTENSIONS:
        raise broken(ProtocolViolation.TOO_MANY_EXTENSIONS, f"{count}, expected at most {MAX_HELLO_EXTENSIONS}")
    found = []
    for _ in range(count):
        each, at = _id(raw, at, start)
        found.append(each)
    return tuple(found), at


def _utf_8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise broken(ProtocolViolation.NOT_UTF_8, f"{error.reason} at byte {error.start}") from error
