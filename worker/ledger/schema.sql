-- The fold's own tables. "fold" and "commands" are logical state and part of the digest;
-- "outbox", "log_marks" and "local" belong to this replica alone.

CREATE TABLE fold (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    root TEXT NOT NULL,
    space TEXT NOT NULL,
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    watermark INTEGER NOT NULL CHECK (watermark >= 0),
    now_ms INTEGER NOT NULL CHECK (now_ms >= 0),
    chain TEXT NOT NULL CHECK (length(chain) = 64),
    ruleset INTEGER NOT NULL CHECK (ruleset >= 1),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 0)
) STRICT;

CREATE TABLE commands (
    ordinal INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL CHECK (at_ms >= 0),
    key BLOB NOT NULL CHECK (length(key) = 16),
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    verdict BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX commands_by_key ON commands (key);

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    at_ms INTEGER NOT NULL CHECK (at_ms >= 0),
    kind INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 6),
    expect INTEGER NOT NULL CHECK (expect >= 0),
    subject TEXT NOT NULL,
    body BLOB NOT NULL,
    trace TEXT CHECK (length(trace) = 55)
) STRICT;

CREATE TABLE log_marks (
    first_seq INTEGER PRIMARY KEY CHECK (first_seq >= 1),
    last_seq INTEGER NOT NULL CHECK (last_seq >= first_seq),
    prints BLOB NOT NULL
) STRICT;

CREATE TABLE local (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
