"""The journal file's tables, as steps from an empty file to the newest schema.

`PRAGMA user_version` says how many steps a file has seen. `migrate` takes the missing ones, each in a transaction of its
own together with the new number, so a process that is killed half-way goes on at the same step. Steps are only ever added
at the end: a step that has been released is history. What the tables are used for is the business of whoever asks them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

from spark_store.errors import SchemaTooNew

Step: TypeAlias = tuple[str, ...]
"""The statements of one step."""

# Entries lie in the order in which a history is read, so that a page of 500 touches some dozen pages of the file instead
# of 500; the index on `seq` is for the one reader that follows everything. `seq` counts on in `counters`, because entries
# that have been trimmed must not make a number come again. Rows of `answers` stand in order of time: what is old is at the
# beginning.
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
        answer     BLOB    NOT NULL
    )
    """,
    "CREATE INDEX answers_by_delivery ON answers (connection, source, name)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counters (name, value) VALUES ('seq', 0)",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, filling BLOB NOT NULL)",
)

# The number of an entity's newest event stands with its state, so that it is still known when the event has been trimmed.
NEWEST_SEQ: Step = (
    "ALTER TABLE entities ADD COLUMN newest_seq INTEGER NOT NULL DEFAULT 0",
    """
    UPDATE entities SET newest_seq = coalesce(
        (SELECT seq FROM entries WHERE entries.entity = entities.key AND entries.revision = entities.revision), 0
    )
    """,
)

# What was erased, and the numbers of erased events: see `spark_store.journal.erasure`.
ERASURES: Step = (
    """
    CREATE TABLE erasures (
        id           INTEGER PRIMARY KEY AUTOINCREMENT,
        type         TEXT    NOT NULL,
        entity       TEXT    NOT NULL,
        seq          INTEGER NOT NULL,
        asked        TEXT    NOT NULL,
        asked_by     TEXT    NOT NULL,
        journal_done TEXT,
        lake_done    TEXT
    )
    """,
    "CREATE TABLE holes (seq INTEGER PRIMARY KEY)",
    "ALTER TABLE answers ADD COLUMN entity INTEGER",
)

# An answer belongs to every entity whose events came with it: nearly always to `entity` alone, else also to those whose keys
# stand in `others`, as in `,7,12,`.
ANSWERS_OF_SEVERAL: Step = ("ALTER TABLE answers ADD COLUMN others TEXT",)

# Up to which revision an entity was erased. Of what was erased earlier that is known while nothing that came after the
# erasure has been trimmed; where it is not known, what is missing counts as trimmed.
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

# What a target is sent beside an event (`cause`), and which connection it must not go back to (`origin`): both are there
# where targets follow events. How far each of them has come stands in `places`: see `spark_store.journal.statements`.
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

# Policies that have to be looked at, and when: `due` is a timestamp, empty for at once; `note` is whatever the one who looks
# wants to know the next time. Whoever writes a policy in which something expires, the service or a rebuild, makes it due at
# once; what is gone or erased is not due any more.
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

# Connections that the API owns, every revision of each; what is kept of those that files own; who changed what: see
# `spark_store.journal.connections`.
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
        asked_by   TEXT NOT NULL,
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

# What of the sessions of other protocols' clients outlives the service: see `spark_store.journal.sessions`.
DESK_SESSIONS: Step = (
    """
    CREATE TABLE desk_sessions (
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
    DESK_SESSIONS,
)


def migrate(connection: sqlite3.Connection, path: str, steps: Sequence[Step] = STEPS) -> int:
    """Bring a file to the newest schema; how many steps were missing.

    `connection` is in autocommit mode; `path` is for the message. Raises SchemaTooNew for a file from a later version,
    sqlite3.Error for what SQLite refuses (then the file is at the last step that was completed).
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
