"""The tables of the journal's file, as steps from an empty file to the newest schema.

`PRAGMA user_version` is the number of steps done. `migrate` does the missing ones, each in a transaction of its own with the
new number, so an interrupted migration continues at the same step. Steps are only added at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

from spark_store.errors import SchemaTooNew

Step: TypeAlias = tuple[str, ...]
"""The statements of one step."""

_EXPIRES = "NEW.type = 'policy' AND instr(NEW.state, '\"expiry\"') > 0"

JOURNAL: Step = (
    # `newest_seq` is the number of the newest event, also after it was trimmed; `erased` is the revision up to which an
    # entity was erased.
    """
    CREATE TABLE entities (
        key        INTEGER PRIMARY KEY,
        type       TEXT    NOT NULL,
        id         TEXT    NOT NULL,
        revision   INTEGER NOT NULL,
        created    TEXT    NOT NULL,
        modified   TEXT    NOT NULL,
        state      BLOB,
        policy     TEXT,
        newest_seq INTEGER NOT NULL DEFAULT 0,
        erased     INTEGER NOT NULL DEFAULT 0,
        UNIQUE (type, id)
    )
    """,
    # Entries are stored in the order of histories, so that a page of 500 reads some dozen pages of the file; the index on
    # `seq` is for the reader of all events. For targets: the headers of an event's cause (`cause`), and the connection that
    # it came from (`origin`), to prevent loops. The cause of a thing's deletion is a list of the headers and the last state.
    """
    CREATE TABLE entries (
        entity    INTEGER NOT NULL REFERENCES entities (key),
        revision  INTEGER NOT NULL,
        seq       INTEGER NOT NULL,
        timestamp TEXT    NOT NULL,
        action    TEXT    NOT NULL,
        path      TEXT    NOT NULL,
        value     BLOB,
        headers   BLOB    NOT NULL,
        origin    TEXT,
        cause     BLOB,
        PRIMARY KEY (entity, revision)
    ) WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX entries_by_seq ON entries (seq)",
    # Rows are in order of time: the old ones come first. An answer belongs to every entity whose events came with it:
    # usually `entity` alone, else also the keys in `others`, as in `,7,12,`.
    """
    CREATE TABLE answers (
        id            INTEGER PRIMARY KEY,
        at            INTEGER NOT NULL,
        connection    TEXT    NOT NULL,
        source        INTEGER NOT NULL,
        name          TEXT    NOT NULL,
        digest        BLOB    NOT NULL,
        log_partition TEXT    NOT NULL,
        log_offset    INTEGER NOT NULL,
        answer        BLOB    NOT NULL,
        entity        INTEGER,
        others        TEXT
    )
    """,
    "CREATE INDEX answers_by_delivery ON answers (connection, source, name)",
    # `seq` continues here, because numbers of trimmed entries must not be given again.
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counters (name, value) VALUES ('seq', 0)",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, filling BLOB NOT NULL)",
    # Erasures, and the numbers of erased events: see `spark_store.journal.erasure`.
    """
    CREATE TABLE erasures (
        id           INTEGER PRIMARY KEY AUTOINCREMENT,
        type         TEXT    NOT NULL,
        entity       TEXT    NOT NULL,
        seq          INTEGER NOT NULL,
        requested_at TEXT    NOT NULL,
        requested_by TEXT    NOT NULL,
        journal_done TEXT,
        lake_done    TEXT
    )
    """,
    "CREATE TABLE holes (seq INTEGER PRIMARY KEY)",
    # The position of each target, and its parked things as JSON, pairs of ID and next revision: see
    # `spark_store.journal.cursors`.
    """
    CREATE TABLE places (
        connection TEXT    NOT NULL,
        target     TEXT    NOT NULL,
        seq        INTEGER NOT NULL,
        skipped    INTEGER NOT NULL,
        parked     TEXT    NOT NULL DEFAULT '[]',
        PRIMARY KEY (connection, target)
    ) WITHOUT ROWID
    """,
    # Policies to check: `due` is a timestamp, empty for at once; `note` is the checker's. Writing a policy with an expiry
    # makes it due at once; deleted or erased ones are not due.
    """
    CREATE TABLE policy_due (entity INTEGER PRIMARY KEY REFERENCES entities (key), due TEXT NOT NULL, note BLOB)
    """,
    "CREATE INDEX policy_due_by_time ON policy_due (due)",
    f"""
    CREATE TRIGGER policy_made AFTER INSERT ON entities WHEN {_EXPIRES} BEGIN
        INSERT INTO policy_due (entity, due) VALUES (NEW.key, '');
    END
    """,
    f"""
    CREATE TRIGGER policy_changed AFTER UPDATE OF state ON entities WHEN {_EXPIRES} BEGIN
        INSERT INTO policy_due (entity, due) VALUES (NEW.key, '') ON CONFLICT (entity) DO UPDATE SET due = '';
    END
    """,
    """
    CREATE TRIGGER policy_rests AFTER UPDATE OF state ON entities
    WHEN NEW.type = 'policy' AND (NEW.state IS NULL OR instr(NEW.state, '"expiry"') = 0) BEGIN
        DELETE FROM policy_due WHERE entity = NEW.key;
    END
    """,
    # Connections of the API with their revisions; notes on those of files; the audit log: see
    # `spark_store.journal.connections`.
    """
    CREATE TABLE connections (
        id          TEXT    NOT NULL,
        revision    INTEGER NOT NULL,
        document    TEXT,
        modified    TEXT    NOT NULL,
        modified_by TEXT    NOT NULL,
        action      TEXT    NOT NULL,
        PRIMARY KEY (id, revision)
    )
    """,
    """
    CREATE TABLE connection_files (
        id       TEXT PRIMARY KEY,
        revision INTEGER NOT NULL,
        digest   TEXT    NOT NULL,
        modified TEXT    NOT NULL,
        override TEXT
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE connection_audit (
        number       INTEGER PRIMARY KEY AUTOINCREMENT,
        at           TEXT NOT NULL,
        requested_by TEXT NOT NULL,
        action       TEXT NOT NULL,
        connection   TEXT NOT NULL,
        revision     INTEGER,
        details      TEXT
    )
    """,
    # The search index: see `spark_store.search.index`. A new file has nothing to index.
    """
    CREATE TABLE search_paths (
        id       INTEGER PRIMARY KEY,
        path     TEXT    NOT NULL UNIQUE,
        wildcard TEXT,
        declared INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX search_paths_by_wildcard ON search_paths (wildcard) WHERE wildcard IS NOT NULL",
    """
    CREATE TABLE search_values (
        path  INTEGER NOT NULL,
        rank  INTEGER NOT NULL,
        value         NOT NULL,
        thing INTEGER NOT NULL,
        PRIMARY KEY (path, rank, value, thing)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE search_declared (
        path  INTEGER NOT NULL,
        rank  INTEGER NOT NULL,
        value         NOT NULL,
        id    TEXT    NOT NULL,
        thing INTEGER NOT NULL,
        PRIMARY KEY (path, rank, value, id)
    ) WITHOUT ROWID
    """,
    "CREATE TABLE search_large (thing INTEGER PRIMARY KEY)",
    "CREATE TABLE search_subjects (subject TEXT, policy TEXT, PRIMARY KEY (subject, policy)) WITHOUT ROWID",
    "CREATE TABLE search_imports (importer TEXT, imported TEXT, PRIMARY KEY (importer, imported)) WITHOUT ROWID",
    "CREATE INDEX search_imports_by_imported ON search_imports (imported)",
    """
    CREATE TABLE search_progress (
        indexed  INTEGER NOT NULL,
        is_stale INTEGER NOT NULL DEFAULT 0,
        declared INTEGER NOT NULL DEFAULT 0
    )
    """,
    "INSERT INTO search_progress (indexed) VALUES (9223372036854775807)",
    # Rows of sessions that outlive the service: see `spark_store.journal.sessions`.
    """
    CREATE TABLE sessions (
        protocol   TEXT    NOT NULL,
        connection TEXT    NOT NULL,
        mapper     TEXT    NOT NULL,
        address    TEXT    NOT NULL,
        key        TEXT    NOT NULL,
        source     INTEGER NOT NULL,
        row        BLOB    NOT NULL,
        last       INTEGER,
        PRIMARY KEY (protocol, connection, mapper, address, key)
    ) WITHOUT ROWID
    """,
    # Creators of things and policies, for quotas: see `spark_store.journal.creators`.
    """
    CREATE TABLE creators (
        type    TEXT NOT NULL,
        id      TEXT NOT NULL,
        subject TEXT NOT NULL,
        PRIMARY KEY (type, id)
    ) WITHOUT ROWID
    """,
    # The lives of deleted entities, and the policies that living things name: see `spark_store.journal.incarnations`.
    """
    CREATE TABLE permissions (key INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB NOT NULL)
    """,
    """
    CREATE TABLE permission_sources (
        policy      TEXT    NOT NULL,
        permissions INTEGER NOT NULL,
        PRIMARY KEY (policy, permissions)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE incarnations (
        entity      INTEGER NOT NULL REFERENCES entities (key),
        last        INTEGER NOT NULL,
        first       INTEGER NOT NULL,
        permissions INTEGER,
        PRIMARY KEY (entity, last)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX incarnations_by_permissions ON incarnations (permissions)",
    "CREATE TABLE named_policies (thing INTEGER PRIMARY KEY REFERENCES entities (key), policy TEXT NOT NULL)",
    "CREATE INDEX named_policies_by_policy ON named_policies (policy)",
    # The use of quotas per day: see `spark_store.journal.quota_days`.
    """
    CREATE TABLE quota_days (
        day      TEXT    NOT NULL,
        holder   TEXT    NOT NULL,
        name     TEXT    NOT NULL,
        quantity TEXT    NOT NULL,
        used     INTEGER NOT NULL,
        PRIMARY KEY (day, holder, name, quantity)
    ) WITHOUT ROWID
    """,
)

STEPS: Sequence[Step] = (JOURNAL,)


def migrate(connection: sqlite3.Connection, path: str, steps: Sequence[Step] = STEPS) -> int:
    """Bring a file to the newest schema; return how many steps were missing.

    `connection` is in autocommit mode; `path` is for the message. Raises SchemaTooNew for a file from a later version,
    sqlite3.Error of SQLite (then the file is at the last completed step).
    """
    found = _version(connection)
    if found > len(steps):
        raise SchemaTooNew(path, found, len(steps))
    for number, statements in enumerate(steps[found:], start=found + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return len(steps) - found


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
