CREATE TABLE mark (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A row lives from the spec until the settlement: what this file holds is what is pending.
CREATE TABLE pending (
    endpoint      TEXT NOT NULL,
    token         TEXT NOT NULL,
    holder_id     TEXT,
    holder_uid    TEXT,
    generation    INTEGER,
    deadline      INTEGER,
    revision      INTEGER,
    spec_revision INTEGER,
    seen_at_ms    INTEGER NOT NULL,
    timer_known   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_by_deadline ON pending (deadline, endpoint, token) WHERE deadline IS NOT NULL;

CREATE INDEX pending_by_endpoint ON pending (endpoint, deadline, token) WHERE deadline IS NOT NULL;

CREATE INDEX pending_by_holder ON pending (holder_id, deadline, endpoint, token)
    WHERE deadline IS NOT NULL;

-- Settled, but this file has not seen the settle fact yet.
CREATE TABLE unproven (
    endpoint   TEXT NOT NULL,
    token      TEXT NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    PRIMARY KEY (endpoint, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX unproven_by_age ON unproven (seen_at_ms);
