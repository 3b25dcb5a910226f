"""The address of Spark Connect that a running pipeline publishes, in one small file.

The file contains the token too, so only the owner of the data folder can read it. It is written atomically when the pipeline
begins to follow the journal, and removed when it ends. A killed pipeline leaves it behind: then the address does not answer,
or refuses the token. With an external Spark (`spark.remote`) nothing is published.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spark_store.errors import StoreUnavailable
from spark_store.files import write_atomically


def local_address(port: int, token: str) -> str:
    """Return the address of a local server. With `127.0.0.1` a client with a token would require TLS."""
    return f"sc://localhost:{port}/;token={token}"


def read_address(path: Path) -> str:
    """Return the last published address, in the form of Spark's clients.

    Raises StoreUnavailable if none runs, or the file is damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StoreUnavailable(
            f"{path}: expected the address of a running pipeline, found no such file; start the service, or "
            "`connectivity pipeline run`, and retry when it is running"
        ) from None
    except OSError as error:
        raise StoreUnavailable(f"{path}: expected a file that can be read, found: {error}") from error
    try:
        return msgspec.json.decode(content, type=str)
    except ValueError as error:
        raise StoreUnavailable(
            f"{path}: expected an address, found {len(content)} bytes that are not an address: {error}"
        ) from error


@contextlib.contextmanager
def publish_address(path: Path, address: str) -> Iterator[None]:
    """Publish an address meanwhile. Raises StoreUnavailable if it cannot be written."""
    try:
        write_atomically(path, msgspec.json.encode(address), mode=0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: the address for Spark queries cannot be written: {error}") from error
    try:
        yield
    finally:
        # The folder may have gone, or another pipeline may have put its own address there.
        with contextlib.suppress(StoreUnavailable, OSError):
            if read_address(path) == address:
                path.unlink()
