"""Watches files of secrets that connections of the API refer to, and reads changed ones.

`connectivity.management.watcher` does it for connection files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from connectivity.connections.model import Connection
from connectivity.connections.secret_references import referenced_files
from connectivity.connections.vault import Document
from connectivity.management.definition import Owner
from connectivity.management.files import stamp
from connectivity.management.registry import ConnectionRegistry

log = structlog.get_logger(__name__)


class _Watched(NamedTuple):
    """A document and the files that it names, with their stamps from before the reading, if known."""

    document: Document
    files: frozenset[Path]
    stamps: Mapping[Path, object] | None


class SecretWatcher:
    """The files of secrets of the connections that the API owns."""

    def __init__(
        self,
        registry: ConnectionRegistry,
        revalidate: Callable[[Document], tuple[Connection | None, tuple[str, ...]]],
    ) -> None:
        """`revalidate` returns the connection of a stored document with its present secrets, or its problems."""
        self._registry = registry
        self._revalidate = revalidate
        self._watched: dict[str, _Watched] = {}

    async def look(self) -> None:
        """Read changed secrets, and begin to apply them. To be called about once a second."""
        self._watched = {
            wanted.id: self._watch(wanted.id, wanted.document)
            for wanted in self._registry.known.values()
            if wanted.owner is Owner.API
        }
        files = frozenset[Path]().union(*(it.files for it in self._watched.values()))
        if not files:
            return
        stamps = await asyncio.to_thread(lambda: {file: stamp(file) for file in files})
        for connection_id, former in list(self._watched.items()):
            found = former._replace(stamps={file: stamps[file] for file in former.files})
            if found != former and former.files:
                await self._read(connection_id, found)

    def _watch(self, connection_id: str, document: Document) -> _Watched:
        former = self._watched.get(connection_id)
        if former is not None and former.document is document:
            return former
        return _Watched(document, referenced_files(document), None)

    async def _read(self, connection_id: str, found: _Watched) -> None:
        """Read a document again. One that changes meanwhile, or is being changed, is left to the next round."""
        wanted = self._registry.known.get(connection_id)
        if wanted is None or wanted.document is not found.document or self._registry.is_busy(connection_id):
            return
        connection, problems = await asyncio.to_thread(self._revalidate, found.document)
        if self._registry.known.get(connection_id) is not wanted or self._registry.is_busy(connection_id):
            return
        self._watched[connection_id] = found
        for problem in problems:
            if problem not in wanted.problems:
                log.error("changed secret of a connection cannot be used", connection=connection_id, problem=problem)
        # Without its secret a running connection goes on as it is.
        self._registry.put(replace(wanted, connection=connection or wanted.connection, problems=problems))
        self._registry.reconcile([connection_id])
