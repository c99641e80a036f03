-- Spending caps (spec/caps.md). A row of "reservations" is never deleted and its key and second are
-- never reused. "generation" is null for a predecessor's record and for nothing else; the checks on
-- what never changes leave "state" out, so that ending a grant never fails over a damaged field.

-- One row for every person who has a reservation or stopped once; it never goes and never falls.
-- The counter is kept twice: one that fell unseen would bring back what a Stop has ended.
CREATE TABLE revoke_generations (
    user TEXT PRIMARY KEY,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    complement INTEGER NOT NULL,
    CHECK (complement = -1 - generation)
) STRICT, WITHOUT ROWID;

-- "trace" is the traceparent of the command that reserved.
CREATE TABLE reservations (
    user TEXT NOT NULL CHECK (length(user) BETWEEN 1 AND 100),
    mint_key TEXT NOT NULL CHECK (length(mint_key) BETWEEN 1 AND 100),
    expires_at_ms INTEGER CHECK (expires_at_ms >= 0 AND expires_at_ms % 1000 = 0),
    latest_expires_at_ms INTEGER NOT NULL CHECK (latest_expires_at_ms >= 0),
    cap INTEGER NOT NULL,
    required_version INTEGER NOT NULL CHECK (required_version >= 0),
    generation INTEGER CHECK (generation >= 0),
    reserved_at_ms INTEGER NOT NULL CHECK (reserved_at_ms >= 0),
    state TEXT NOT NULL CHECK (
        state = 'reserved' OR state = 'confirmed_active' OR state = 'superseded'
        OR state = 'revoked' OR state = 'expired' OR state = 'legacy'
    ),
    confirmed_at_ms INTEGER,
    ended_at_ms INTEGER,
    trace TEXT CHECK (length(trace) = 55),
    PRIMARY KEY (user, mint_key),
    UNIQUE (user, expires_at_ms),
    FOREIGN KEY (user) REFERENCES revoke_generations (user),
    CHECK (generation IS NULL OR cap BETWEEN 1 AND 1000000000),
    CHECK (generation IS NULL OR expires_at_ms IS NOT NULL),
    CHECK ((generation IS NULL) = (state = 'legacy')),
    CHECK (
        (confirmed_at_ms IS NOT NULL)
        = (state = 'confirmed_active' OR state = 'superseded' OR state = 'revoked')
    ),
    CHECK (
        (ended_at_ms IS NOT NULL)
        = (state = 'superseded' OR state = 'revoked' OR state = 'expired')
    )
) STRICT, WITHOUT ROWID;

-- A damaged row drops out of it, so that time does not stumble over it again and again.
CREATE INDEX reservations_waiting ON reservations (reserved_at_ms)
WHERE state = 'reserved' AND generation IS NOT NULL
    AND confirmed_at_ms IS NULL AND ended_at_ms IS NULL;
CREATE UNIQUE INDEX reservations_active ON reservations (user) WHERE state = 'confirmed_active';
CREATE INDEX reservations_ended ON reservations (ended_at_ms) WHERE ended_at_ms IS NOT NULL;

-- The grant confirmed last, also after it ended.
CREATE TABLE active_grants (
    user TEXT PRIMARY KEY,
    mint_key TEXT NOT NULL,
    FOREIGN KEY (user, mint_key) REFERENCES reservations (user, mint_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    minting INTEGER NOT NULL CHECK (minting = 0 OR minting = 1),
    permit_ms INTEGER NOT NULL CHECK (permit_ms BETWEEN 1 AND 2000)
) STRICT;

INSERT INTO settings VALUES (1, 0, 2000);

-- The latest end of a permit given to each user.
CREATE TABLE permits (
    user TEXT PRIMARY KEY,
    ends_at_ms INTEGER NOT NULL CHECK (ends_at_ms >= 0)
) STRICT, WITHOUT ROWID;

-- The one import; "done_at_ms" is the marker.
CREATE TABLE imports (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    import_id TEXT NOT NULL CHECK (length(import_id) BETWEEN 1 AND 64),
    chunks INTEGER NOT NULL CHECK (chunks BETWEEN 0 AND of),
    of INTEGER NOT NULL CHECK (of >= 1),
    imported INTEGER NOT NULL CHECK (imported >= 0),
    malformed INTEGER NOT NULL CHECK (malformed >= 0),
    duplicates INTEGER NOT NULL CHECK (duplicates >= 0),
    shared_seconds INTEGER NOT NULL CHECK (shared_seconds >= 0),
    shared_keys INTEGER NOT NULL CHECK (shared_keys >= 0),
    done_at_ms INTEGER CHECK (done_at_ms >= 0),
    CHECK ((done_at_ms IS NOT NULL) = (chunks = of))
) STRICT;
