"""A data folder whose journal has connections and users encrypted with two keys."""

from __future__ import annotations

import json
from pathlib import Path

from connectivity.config.settings import Settings
from connectivity.connections.vault import Vault
from spark_store.journal import connections
from spark_store.journal.journal import Journal
from spark_store.records import AuditEntry, StoredRevision

OLD, NEW = b"o" * 32, b"n" * 32
AT = "2030-01-15T07:30:00+00:00"
REVISIONS = 3
SECRETS = 2 * REVISIONS
"""Each revision of two connections has a secret, except the last one of the second, a deletion."""


def document(name: str, revision: int) -> dict[str, str]:
    return {"id": name, "uri": f"tcp://u:geheim-{revision}@h:1"}


def fill(folder: Path, key: bytes = OLD) -> Settings:
    """Store two connections with several revisions, and one without secrets."""
    folder.mkdir(exist_ok=True)
    vault = Vault([key])
    with_journal(folder, lambda it: None)
    rows = [
        StoredRevision(name, number, json.dumps(vault.seal(document(name, number))), AT, "ada", "modify")
        for name in ("depot-7", "depot-8")
        for number in range(1, REVISIONS + 1)
    ]
    rows.append(StoredRevision("depot-8", REVISIONS + 1, None, AT, "ada", "delete"))
    rows.append(
        StoredRevision("open-to-all", 1, json.dumps({"id": "open-to-all", "uri": "tcp://h:1"}), AT, "x", "create")
    )

    def store(it: object) -> None:
        for row in rows:
            connections.store(it, row, AuditEntry(AT, row.by, row.action, row.id, row.revision))  # type: ignore[arg-type]

    with_journal(folder, store)
    return Settings(data_dir=folder)


def with_journal(folder: Path, step: object) -> object:
    journal = Journal.open(folder / "journal.db")
    try:
        found = journal.within(step)  # type: ignore[arg-type, var-annotated]
        journal.commit()
    finally:
        journal.close()
    return found


def stored(folder: Path) -> list[StoredRevision]:
    found = with_journal(
        folder,
        lambda it: [row for name in ("depot-7", "depot-8", "open-to-all") for row in connections.revisions(it, name)],
    )
    assert isinstance(found, list)
    return found


def opened(folder: Path, *keys: bytes) -> int:
    """Decrypt all documents with these keys and return the number of secrets."""
    count = 0
    for row in stored(folder):
        if row.document is not None:
            clear = Vault(keys).unseal(json.loads(row.document))
            if row.id != "open-to-all":
                assert clear == document(row.id, row.revision)
                count += 1
    return count
