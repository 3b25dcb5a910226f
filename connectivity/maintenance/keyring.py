"""The keys that seal secrets: those of the settings, and the one that the service creates.

The first of these seals, all of them open: `secrets.key`, the lines of `secrets.key_file`, the lines of `secrets.key` in the
data folder, `secrets.old_keys`. If no key is configured, the service creates the file `secrets.key` (mode 0600) when the
first secret must be sealed, and logs it. That key protects copies of `journal.db`, not copies of the whole folder.

A key file has one key per line, the newest first. One that users other than its owner and group can read, or others than its
owner can write, is rejected.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from connectivity.config.settings import Settings
from connectivity.connections.vault import Vault
from connectivity.errors import ConnectivityError, SettingsError
from connectivity.security import redaction
from connectivity.security.keys import KEY_BYTES, key_id, key_text, new_key, read_key
from connectivity.store.folder_lock import open_journal
from mappings.timestamps import utc_text
from spark_store.errors import CommitFailed, StoreError
from spark_store.files import sync_path
from spark_store.journal import connections
from spark_store.journal.journal import Journal
from spark_store.journal.reader import expect_journal
from spark_store.records import AuditEntry, StoredRevision

log = structlog.get_logger(__name__)

KEY_FILE_NAME = "secrets.key"
"""The key file in the data folder."""

_UNSAFE = stat.S_IWGRP | stat.S_IRWXO
_MAX_FILE_BYTES = 64 * 1024


def open_vault(settings: Settings) -> Vault:
    """Return the vault of a service with these settings. Raises SettingsError for an invalid key file."""
    own = Path(settings.data_dir) / KEY_FILE_NAME
    return Vault(keys_of(settings), lambda: _first_key(own))


def keys_of(settings: Settings) -> Sequence[bytes]:
    """Return all keys, the sealing one first. Raises SettingsError for an invalid key file."""
    named = settings.secrets
    own = Path(settings.data_dir) / KEY_FILE_NAME
    keys = [read_key(named.key.get_secret_value())] if named.key is not None else []
    if named.key_file is not None:
        keys += read_key_file(named.key_file, "secrets.key_file")
    if _exists(own, "data_dir"):
        keys += read_key_file(own, "data_dir")
    keys += [read_key(key.get_secret_value()) for key in named.old_keys]
    redaction.remember_own(map(key_text, keys))
    return list(dict.fromkeys(keys))


def _exists(file: Path, setting: str) -> bool:
    """Whether there is such a file.

    Raises SettingsError, which names `setting`, if it cannot be looked up.
    """
    try:
        return file.exists()
    except OSError as error:
        raise _unreadable(file, setting, error) from error


def _unreadable(file: Path, setting: str, error: OSError) -> SettingsError:
    return SettingsError(f"{setting} {file}: expected a readable key file, found: {error.strerror}")


def read_key_file(file: Path, setting: str) -> list[bytes]:
    """Return the keys of a file. Raises SettingsError, which names `setting`, for an invalid one."""
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & _UNSAFE:
                expected = "expected one that only its owner can write, and only its owner and group can read"
                raise SettingsError(
                    f"{setting} {file}: found a file with mode {mode:04o}, {expected} (chmod 600 {file})"
                )
            lines = opened.read(_MAX_FILE_BYTES).decode("ascii").split()
        keys = [read_key(line) for line in lines]
    except OSError as error:
        raise _unreadable(file, setting, error) from error
    except ValueError:
        # The text is not quoted: it may be a key with a typing error.
        keys = []
    if not keys:
        raise SettingsError(
            f"{setting} {file}: expected {KEY_BYTES} bytes in base64 on each line, found a line with other content"
        )
    return keys


def add_key(file: Path, key: bytes) -> None:
    """Add a key at the head of a key file, which is created if it is missing.

    The file keeps its owner, group and permissions. A crash leaves it as it was. Raises SettingsError for an invalid file,
    or one that cannot be written.
    """
    file = Path(os.path.realpath(file))
    earlier = read_key_file(file, "key file") if _exists(file, "key file") else []
    written = "".join(f"{key_text(each)}\n" for each in (key, *earlier))
    draft = file.with_name(f".{file.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            if earlier:
                _copy_owner(file, descriptor)
            opened.write(written)
            opened.flush()
            os.fsync(opened.fileno())
        draft.rename(file)
        sync_path(file.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise SettingsError(f"key file {file}: expected a file that can be written, found: {error.strerror}") from error


def _copy_owner(file: Path, descriptor: int) -> None:
    """Give an open file the owner, group and permissions of another file, if this process may.

    Raises OSError.
    """
    status = file.stat()
    # The permissions are meant for that group: for another one, they would be too many.
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def _first_key(file: Path) -> bytes:
    """Create the service's own key."""
    key = new_key()
    redaction.remember_own([key_text(key)])
    add_key(file, key)
    log.warning(
        "secrets key created",
        file=str(file),
        key=key_id(key),
        hint="back it up outside the data folder, or set secrets.key_file: without it stored secrets are lost",
    )
    return key


ACTION = "rotate secrets"


class RotationFailed(ConnectivityError):
    """There is no key, or the store cannot be used now. The text says whether something may have changed."""


class RotationResult(NamedTuple):
    """The result of a rotation: the new key's ID, and how many secrets in how many revisions changed."""

    key: str
    secrets: int
    revisions: int
    unneeded: tuple[str, ...]
    """The IDs of the other configured keys, which are no longer needed."""


def rotate_offline(settings: Settings, by: str) -> RotationResult:
    """Seal all secrets of a data folder with the newest key.

    Raises DataFolderLocked, SettingsError for invalid keys, UnknownKey, AlteredSecret, RotationFailed.
    """
    data_dir = Path(settings.data_dir)
    vault = Vault(keys_of(settings))
    if not vault.key_ids:
        raise RotationFailed(
            "found no key, expected secrets.key, secrets.key_file, or one that the service has created; nothing has changed"
        )
    try:
        # In another folder there would be nothing to encrypt, and the former keys would seem unneeded.
        expect_journal(data_dir / "journal.db")
        with open_journal(data_dir) as journal:
            return _rotate(journal, vault, by)
    except CommitFailed as error:
        raise RotationFailed(
            f"{error}; it is not known which key encrypts the secrets now: keep all keys, and repeat the rotation"
        ) from error
    except StoreError as error:
        raise RotationFailed(f"{error}; nothing has changed") from error


def _rotate(journal: Journal, vault: Vault, by: str) -> RotationResult:
    newest, *others = vault.key_ids
    secrets = 0

    def reseal(stored: StoredRevision) -> str | None:
        nonlocal secrets
        found = vault.reseal(json.loads(stored.document or "{}"))
        secrets += found.changed
        return json.dumps(found.document) if found.changed else None

    try:
        revisions = journal.within(lambda it: connections.rewrite(it, reseal))
        entry = AuditEntry(utc_text(datetime.now(UTC)), by, ACTION, "", None, f"{secrets} under key {newest}")
        if revisions:
            journal.within(lambda it: connections.audit(it, entry))
        journal.commit()
    except BaseException:
        journal.rollback()
        raise
    with contextlib.suppress(StoreError):
        # The log loses secrets sealed with the old key too, at the latest when the last process closes the journal. A
        # failure here must not be reported: all secrets are under the new key.
        journal.scrub()
    return RotationResult(newest, secrets, revisions, tuple(others))
