"""Where wide queries are answered: the address that a running pipeline publishes, in one small file.

The file holds the token too, so only the owner of the data folder may read it. It is written whole and put in its place by
a rename when the pipeline begins to follow, and removed when it ends. A pipeline that was killed leaves it behind: then
nobody answers at that address, or refuses the token, until the next one has replaced it.

An installation with a Spark of its own names that one's address instead (`spark.remote`), and nothing is published.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spark_store.errors import NoPipeline, StoreUnavailable
from spark_store.files import write_atomically


class ConnectAddress(msgspec.Struct, frozen=True):
    """Where Spark Connect listens, as its clients write it, and the process that does."""

    url: str
    pid: int

    def __repr__(self) -> str:
        """Without the token."""
        return f"Address({self.url.partition(';')[0]!r}, pid={self.pid})"


def local_address(port: int, token: str, pid: int) -> ConnectAddress:
    """Of a server on this machine's loopback interface.

    With `127.0.0.1` a client that has a token would insist on TLS.
    """
    return ConnectAddress(f"sc://localhost:{port}/;token={token}", pid)


def read_address(path: Path) -> ConnectAddress:
    """What a pipeline has published last.

    Raises NoPipeline where none runs, StoreUnavailable for a file that is spoilt.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NoPipeline(
            f"{path}: expected the address of a running pipeline, found no such file; start the service, or "
            "`connectivity pipeline run`, and ask again when it follows"
        ) from None
    except OSError as error:
        raise StoreUnavailable(f"{path}: expected a file that can be read, found: {error}") from error
    try:
        return msgspec.json.decode(content, type=ConnectAddress)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(
            f"{path}: expected an address, found {len(content)} bytes that are none: {error}"
        ) from error


@contextlib.contextmanager
def published(path: Path, address: ConnectAddress) -> Iterator[None]:
    """Tell callers meanwhile. Raises StoreUnavailable where that cannot be written."""
    try:
        write_atomically(path, msgspec.json.encode(address), mode=0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: the address for wide queries cannot be written: {error}") from error
    try:
        yield
    finally:
        # The folder may have gone, or another pipeline may have put its own address there.
        with contextlib.suppress(StoreUnavailable, NoPipeline, OSError):
            if read_address(path) == address:
                path.unlink()
