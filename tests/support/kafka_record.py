"""A Kafka record without a broker."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE


class Record:
    """A message of the Kafka library."""

    def __init__(self, headers: Any, *, value: bytes | None = b"{}", key: bytes | None = None, time: int = 7) -> None:
        self._headers, self._value, self._key, self._time = headers, value, key, time

    def headers(self) -> Any:
        if isinstance(self._headers, BaseException):
            raise self._headers
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._headers = headers

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return "in"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 12

    def timestamp(self) -> tuple[int, int]:
        return (TIMESTAMP_CREATE_TIME if self._time else TIMESTAMP_NOT_AVAILABLE), self._time

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value
