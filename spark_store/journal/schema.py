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

# Entries are stored in the order of histories, so that a page of 500 reads some dozen pages of the file; the index on `seq`
# is for the reader of all events. `seq` continues in `counters`, because numbers of trimmed entries must not be given again.
# Rows of `answers` are in order of time: the old ones come first.
JOURNAL: Step = (
    """
    CREATE TABLE entities (
        key      INTEGER PRIMARY KEY,
        type     TEXT    NOT NULL,
        id       TEXT    NOT NULL,
        revision INTEGER NOT NULL,
        created  TEXT    NOT NULL,
        modified TEXT    NOT NULL,
        state    BLOB,
        policy   TEXT,
        UNIQUE (type, id)
    )
    """,
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
        PRIMARY KEY (entity, revision)
    ) WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX entries_by_seq ON entries (seq)",
    """
    CREATE TABLE answers (
        id         INTEGER PRIMARY KEY,
        at         INTEGER NOT NULL,
        connection TEXT    NOT NULL,
        source     INTEGER NOT NULL,
        name       TEXT    NOT NULL,
        digest     BLOB    NOT NULL,
        log_partition TEXT NOT NULL,
        log_offset INTEGER NOT NULL,
        answer     BLOB    NOT NULL
    )
    """,
    "CREATE INDEX answers_by_delivery ON answers (connection, source, name)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counters (name, value) VALUES ('seq', 0)",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, filling BLOB NOT NULL)",
)

# The number of an entity's newest event is stored with its state, so that it is known after trimming.
NEWEST_SEQ: Step = (
    "ALTER TABLE entities ADD COLUMN newest_seq INTEGER NOT NULL DEFAULT 0",
    """
    UPDATE entities SET newest_seq = coalesce(
        (SELECT seq FROM entries WHERE entries.entity = entities.key AND entries.revision = entities.revision), 0
    )
    """,
)

# Erasures, and the numbers of erased events: see `spark_store.journal.erasure`.
ERASURES: Step = (
    """
    CREATE TABLE erasures (
        id           INTEGER PRIMARY KEY AUTOINCREMENT,
        type         TEXT    NOT NULL,
        entity       TEXT    NOT NULL,
        seq          INTEGER NOT NULL,
        requested_at TEXT    NOT NULL,
        requested_by     TEXT    NOT NULL,
        journal_done TEXT,
        lake_done    TEXT
    )
    """,
    "CREATE TABLE holes (seq INTEGER PRIMARY KEY)",
    "ALTER TABLE answers ADD COLUMN entity INTEGER",
)

# An answer belongs to every entity whose events came with it: usually `entity` alone, else also the keys in `others`, as in
# `,7,12,`.
ANSWERS_OF_SEVERAL: Step = ("ALTER TABLE answers ADD COLUMN others TEXT",)

# The revision up to which an entity was erased. For earlier erasures it is known unless later events were trimmed; otherwise
# missing events are treated as trimmed.
ERASED_REVISION: Step = (
    "ALTER TABLE entities ADD COLUMN erased INTEGER NOT NULL DEFAULT 0",
    """
    UPDATE entities SET erased = coalesce(
        (SELECT min(revision) - 1 FROM entries WHERE entries.entity = entities.key AND seq > erasures.seq), revision
    )
    FROM (SELECT type, entity, max(seq) AS seq FROM erasures GROUP BY type, entity) AS erasures
    WHERE erasures.type = entities.type AND erasures.entity = entities.id
    AND (newest_seq = 0 OR (SELECT min(seq) FROM entries) <= erasures.seq + 1)
    """,
)

# For targets: the headers of an event's cause (`cause`), and the connection it came from (`origin`), to prevent loops. The
# cause of a thing's deletion is a list of the headers and of the last state.
# `places` has the position of each target: see `spark_store.journal.statements`.
TARGETS: Step = (
    "ALTER TABLE entries ADD COLUMN origin TEXT",
    "ALTER TABLE entries ADD COLUMN cause BLOB",
    """
    CREATE TABLE places (
        connection TEXT    NOT NULL,
        target     TEXT    NOT NULL,
        seq        INTEGER NOT NULL,
        skipped    INTEGER NOT NULL,
        PRIMARY KEY (connection, target)
    ) WITHOUT ROWID
    """,
)

# Policies to check: `due` is a timestamp, empty for at once; `note` is the checker's. Writing a policy with an expiry makes
# it due at once; deleted or erased ones are not due.
_EXPIRES = "NEW.type = 'policy' AND instr(NEW.state, '\"expiry\"') > 0"
POLICY_DUE: Step = (
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
    """
    INSERT INTO policy_due (entity, due)
    SELECT key, '' FROM entities WHERE type = 'policy' AND instr(state, '"expiry"') > 0
    """,
)

# Connections of the API with their revisions; notes on those of files; the audit log: see `spark_store.journal.connections`.
CONNECTIONS: Step = (
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
        number     INTEGER PRIMARY KEY AUTOINCREMENT,
        at         TEXT NOT NULL,
        requested_by   TEXT NOT NULL,
        action     TEXT NOT NULL,
        connection TEXT NOT NULL,
        revision   INTEGER,
        details    TEXT
    )
    """,
)

# The search index: see `spark_store.search.index`. A file that has entities gets it later, step by step.
SEARCH: Step = (
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
    """
    INSERT INTO search_progress (indexed)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM entities) THEN 0 ELSE 9223372036854775807 END
    """,
)

# Rows of sessions that outlive the service: see `spark_store.journal.sessions`.
SESSIONS: Step = (
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
)

# The parked things of a target as JSON: pairs of ID and next revision.
PARKED_THINGS: Step = ("ALTER TABLE places ADD COLUMN parked TEXT NOT NULL DEFAULT '[]'",)

# Creators of things and policies, for quotas: see `spark_store.journal.creators`.
CREATORS: Step = (
    """
    CREATE TABLE creators (
        type    TEXT NOT NULL,
        id      TEXT NOT NULL,
        subject TEXT NOT NULL,
        PRIMARY KEY (type, id)
    ) WITHOUT ROWID
    """,
)

# The use of quotas per day: see `spark_store.journal.quota_days`.
QUOTA_DAYS: Step = (
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

# The lives of deleted entities, and the policies that living things name: see `spark_store.journal.incarnations`. An older
# file knows no permissions; where the beginning was trimmed, a deletion may have been too, so another life ends there.
INCARNATIONS: Step = (
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
    """
    INSERT INTO incarnations (entity, last, first)
    SELECT entity, last, lag(last, 1, 0) OVER (PARTITION BY entity ORDER BY last) + 1 FROM (
        SELECT entity, revision AS last FROM entries WHERE action = 'deleted' AND path = '/'
        UNION
        SELECT key, coalesce((SELECT min(revision) FROM entries WHERE entity = key), revision + 1) - 1
        FROM entities WHERE type != 'stream'
    ) JOIN entities ON key = entity WHERE last > erased
    """,
    "CREATE TABLE named_policies (thing INTEGER PRIMARY KEY REFERENCES entities (key), policy TEXT NOT NULL)",
    "CREATE INDEX named_policies_by_policy ON named_policies (policy)",
    """
    INSERT INTO named_policies (thing, policy)
    SELECT key, policy FROM entities WHERE type = 'thing' AND state IS NOT NULL AND policy IS NOT NULL
    """,
)

STEPS: Sequence[Step] = (
    JOURNAL,
    NEWEST_SEQ,
    ERASURES,
    ANSWERS_OF_SEVERAL,
    ERASED_REVISION,
    TARGETS,
    POLICY_DUE,
    CONNECTIONS,
    SEARCH,
    SESSIONS,
    PARKED_THINGS,
    CREATORS,
    INCARNATIONS,
    QUOTA_DAYS,
)


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
