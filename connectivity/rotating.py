"""Another key for the secrets that are stored: all of them under the newest one, in one transaction.

Works on a data folder that no service has. Before it everything opens with the keys that there are, after it with the
newest alone; whatever comes in between, a crash among it, leaves everything as it was. A secret that cannot be opened stops
it, since the key that is missing may still be found.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from connectivity.errors import ConnectivityError
from connectivity.keys import keys_of
from connectivity.lock import lock_folder
from connectivity.settings import Settings
from connectivity.vault import Vault
from spark_store import definitions
from spark_store.errors import StoreError
from spark_store.instants import as_text
from spark_store.journal import SqliteJournal
from spark_store.records import AuditEntry, StoredRevision

ACTION = "rotate secrets"


class NotRotated(ConnectivityError):
    """There is no key, or the store cannot be used now. Nothing has changed."""


class Rotated(NamedTuple):
    """What was done: the key under which all secrets are now, how many changed, in how many revisions of connections."""

    key: str
    secrets: int
    revisions: int
    unneeded: tuple[str, ...]
    """The other keys that the settings name: they open nothing any more."""


def rotate_here(settings: Settings, by: str) -> Rotated:
    """Seal everything that a data folder has under the newest key.

    Raises DataFolderLocked, SettingsError for keys that cannot be used, UnknownKey and AlteredSecret, NotRotated.
    """
    data_dir = Path(settings.data_dir)
    vault = Vault(keys_of(settings))
    if not vault.key_ids:
        raise NotRotated("found no key, expected secrets.key, secrets.key_file, or one that the service has made")
    try:
        with lock_folder(data_dir), contextlib.closing(SqliteJournal.open(data_dir / "journal.db")) as journal:
            return _rotate(journal, vault, by)
    except StoreError as error:
        raise NotRotated(str(error)) from error


def _rotate(journal: SqliteJournal, vault: Vault, by: str) -> Rotated:
    newest, *others = vault.key_ids
    secrets = 0

    def resealed(stored: StoredRevision) -> str | None:
        nonlocal secrets
        found = vault.reseal(json.loads(stored.document or "{}"))
        secrets += found.changed
        return json.dumps(found.document) if found.changed else None

    try:
        revisions = journal.within(lambda it: definitions.rewrite(it, resealed))
        entry = AuditEntry(as_text(datetime.now(UTC)), by, ACTION, "", None, f"{secrets} under key {newest}")
        if revisions:
            journal.within(lambda it: definitions.audit(it, entry))
        journal.commit()
    except BaseException:
        journal.rollback()
        raise
    with contextlib.suppress(StoreError):
        # What the old key has sealed leaves the log too; at the latest when nobody has the journal open any more. All
        # secrets are under the new key by now, so nothing here may say that they are not.
        journal.scrub()
    return Rotated(newest, secrets, revisions, tuple(others))
