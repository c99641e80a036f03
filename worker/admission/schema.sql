-- Admission's tables; all of them are logical state and part of the digest.

-- The policy in force and what is counted against it.
CREATE TABLE adm_limits (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    max_active_turns INTEGER NOT NULL CHECK (max_active_turns >= 1),
    max_concurrent_starts INTEGER NOT NULL CHECK (max_concurrent_starts >= 1),
    min_start_interval_ms INTEGER NOT NULL CHECK (min_start_interval_ms >= 0),
    queue_timeout_ms INTEGER NOT NULL CHECK (queue_timeout_ms BETWEEN 1 AND 1800000),
    capacity_cooldown_ms INTEGER NOT NULL CHECK (capacity_cooldown_ms >= 0),
    start_timeout_ms INTEGER NOT NULL CHECK (start_timeout_ms >= 1),
    adoption_timeout_ms INTEGER NOT NULL CHECK (adoption_timeout_ms >= 1),
    silence_ms INTEGER NOT NULL CHECK (silence_ms >= 1),
    seat_limit INTEGER NOT NULL CHECK (seat_limit >= 0),
    draining INTEGER NOT NULL CHECK (draining = 0 OR draining = 1),
    next_policy TEXT CHECK (next_policy IS NULL OR draining = 1),
    seats INTEGER NOT NULL CHECK (seats >= 0),
    starts INTEGER NOT NULL CHECK (starts >= 0 AND starts <= seats),
    queued INTEGER NOT NULL CHECK (queued >= 0),
    admissions INTEGER NOT NULL CHECK (admissions >= seats),
    by_age INTEGER NOT NULL CHECK (by_age = 0 OR by_age = 1),
    paced_at_ms INTEGER,
    kept_at_ms INTEGER,
    drained_to INTEGER CHECK (drained_to >= 0),
    max_retry_after_ms INTEGER NOT NULL DEFAULT 86400000 CHECK (max_retry_after_ms >= 0),
    max_priority TEXT
) STRICT;

INSERT INTO adm_limits VALUES
    (1, 0, 8, 8, 0, 1800000, 30000, 60000, 60000, 4000, 8, 0, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL,
    86400000, NULL);

-- Every turn. "node" is its line in adm_heads while it stands in the queue; "trace" is the
-- traceparent of the command that enqueued it.
CREATE TABLE adm_requests (
    request_id TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (
        state = 'queued' OR state = 'admitted' OR state = 'starting'
        OR state = 'dispatch_intent' OR state = 'active' OR state = 'completed'
        OR state = 'failed' OR state = 'cancelled' OR state = 'queue_timeout'
        OR state = 'dispatch_ambiguous' OR state = 'recovery_required'
    ),
    generation INTEGER NOT NULL CHECK (generation >= 1),
    principal TEXT NOT NULL,
    uid TEXT NOT NULL,
    session_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    handing TEXT NOT NULL CHECK (handing = 'push' OR handing = 'pull'),
    priority INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    timeout_ms INTEGER CHECK (timeout_ms >= 1),
    enqueued_at_ms INTEGER NOT NULL CHECK (enqueued_at_ms >= 0),
    deadline_at_ms INTEGER NOT NULL CHECK (deadline_at_ms >= enqueued_at_ms),
    aged_at_ms INTEGER NOT NULL CHECK (aged_at_ms >= enqueued_at_ms),
    aged INTEGER NOT NULL CHECK (aged = 0 OR aged = 1),
    node INTEGER CHECK (node IS NULL OR state = 'queued'),
    releases INTEGER NOT NULL CHECK (releases BETWEEN 0 AND 3),
    identity TEXT,
    payload_fingerprint TEXT,
    payload_key_version INTEGER,
    payload_generation INTEGER,
    payload_revision INTEGER,
    settled_at_ms INTEGER,
    reason TEXT,
    failure TEXT,
    trace TEXT CHECK (length(trace) = 55),
    CHECK (payload_revision IS NULL OR payload_fingerprint IS NOT NULL)
) STRICT;

CREATE INDEX adm_requests_line ON adm_requests (node, enqueued_at_ms, request_id)
    WHERE node IS NOT NULL;
CREATE INDEX adm_requests_aged ON adm_requests (node, enqueued_at_ms, request_id)
    WHERE node IS NOT NULL AND aged = 1;
CREATE INDEX adm_requests_ageing ON adm_requests (aged_at_ms, request_id)
    WHERE node IS NOT NULL AND aged = 0;
CREATE INDEX adm_requests_deadline ON adm_requests (deadline_at_ms, request_id)
    WHERE state = 'queued';
CREATE INDEX adm_requests_order ON adm_requests (priority DESC, enqueued_at_ms, request_id)
    WHERE state = 'queued';
CREATE INDEX adm_requests_unsealed ON adm_requests (principal, uid, request_id)
    WHERE state = 'queued' AND node IS NULL;
CREATE INDEX adm_requests_settled ON adm_requests (settled_at_ms) WHERE settled_at_ms IS NOT NULL;

-- Ids of turns that were pruned; a request id is never used twice.
CREATE TABLE adm_used (request_id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

-- One row per seat held. Its phase is its request's state, its generation its request's.
CREATE TABLE adm_leases (
    request_id TEXT PRIMARY KEY REFERENCES adm_requests (request_id),
    lease_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    uid TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    admitted_at_ms INTEGER NOT NULL,
    start_deadline_at_ms INTEGER,
    connector TEXT,
    child TEXT,
    channel TEXT CHECK (
        channel IS NULL OR channel = 'stdin' OR channel = 'pty' OR channel = 'http'
        OR channel = 'other'
    ),
    debt_at_ms INTEGER,
    suspect_at_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX adm_leases_owner ON adm_leases (principal, uid);
CREATE INDEX adm_leases_admitted ON adm_leases (admitted_at_ms);
CREATE INDEX adm_leases_starting ON adm_leases (start_deadline_at_ms)
    WHERE start_deadline_at_ms IS NOT NULL;

-- Agents that hold seats.
CREATE TABLE adm_agents (
    agent_id TEXT PRIMARY KEY,
    seats INTEGER NOT NULL CHECK (seats >= 1)
) STRICT, WITHOUT ROWID;

-- Models that rest.
CREATE TABLE adm_cooldowns (
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (provider, model)
) STRICT, WITHOUT ROWID;

CREATE INDEX adm_cooldowns_until ON adm_cooldowns (until_ms);

-- Connector processes that have spoken, and what is known against them.
CREATE TABLE adm_owners (
    principal TEXT NOT NULL,
    uid TEXT NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    silent_at_ms INTEGER,
    dead_at_ms INTEGER,
    adoption_due_at_ms INTEGER CHECK (adoption_due_at_ms IS NULL OR dead_at_ms IS NOT NULL),
    PRIMARY KEY (principal, uid)
) STRICT, WITHOUT ROWID;

CREATE INDEX adm_owners_blocked ON adm_owners (principal, uid)
    WHERE silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL;
CREATE INDEX adm_owners_silent ON adm_owners (principal, uid)
    WHERE silent_at_ms IS NOT NULL AND dead_at_ms IS NULL;
CREATE INDEX adm_owners_gone ON adm_owners (seen_at_ms)
    WHERE silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL;
CREATE INDEX adm_owners_adoption ON adm_owners (adoption_due_at_ms)
    WHERE adoption_due_at_ms IS NOT NULL;

-- The queue's heads: a tree whose every node offers its parent the best of what stands below it.
-- Levels: 1 tier (hand-out and priority), 2 model, 3 owner, 4 line (one agent's turns).
CREATE TABLE adm_heads (
    node INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    level INTEGER NOT NULL CHECK (level BETWEEN 1 AND 4 AND (level = 1) = (parent = 0)),
    key TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    parked INTEGER NOT NULL CHECK (parked = 0 OR parked = 1),
    head_at_ms INTEGER,
    head_id TEXT CHECK ((head_id IS NULL) = (head_at_ms IS NULL)),
    idle_at_ms INTEGER,
    idle_id TEXT CHECK ((idle_id IS NULL) = (idle_at_ms IS NULL)),
    aged_at_ms INTEGER,
    aged_id TEXT CHECK ((aged_id IS NULL) = (aged_at_ms IS NULL)),
    by_age INTEGER NOT NULL DEFAULT 0 CHECK (by_age = 0 OR by_age = 1)
) STRICT;

CREATE UNIQUE INDEX adm_heads_path ON adm_heads (parent, key, priority);
CREATE INDEX adm_heads_entity ON adm_heads (level, key);
CREATE INDEX adm_heads_parked ON adm_heads (parent) WHERE level = 3 AND parked = 1;
CREATE INDEX adm_heads_tier ON adm_heads (key, priority DESC)
    WHERE parent = 0 AND head_id IS NOT NULL;
CREATE INDEX adm_heads_head ON adm_heads (parent, head_at_ms, head_id) WHERE head_id IS NOT NULL;
CREATE INDEX adm_heads_idle ON adm_heads (parent, idle_at_ms, idle_id) WHERE idle_id IS NOT NULL;
CREATE INDEX adm_heads_aged ON adm_heads (parent, aged_at_ms, aged_id) WHERE aged_id IS NOT NULL;

-- The journal; only triples that worker.admission.moves lists are written or read.
CREATE TABLE adm_journal (
    sequence INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (
        kind = 'request_enqueued' OR kind = 'request_cancelled' OR kind = 'request_abandoned'
        OR kind = 'request_queue_timed_out' OR kind = 'request_admitted'
        OR kind = 'request_starting' OR kind = 'request_dispatch_intent'
        OR kind = 'request_active' OR kind = 'request_dispatch_ambiguous'
        OR kind = 'request_provider_terminal' OR kind = 'request_released'
        OR kind = 'request_recovery_required' OR kind = 'request_recovery_seat_released'
        OR kind = 'request_requeued' OR kind = 'request_adopted' OR kind = 'request_resolved'
        OR kind = 'queued_owner_dead' OR kind = 'policy_claimed'
        OR kind = 'policy_drain_started' OR kind = 'policy_drain_completed'
    ),
    from_state TEXT CHECK (
        from_state IS NULL OR from_state = 'queued' OR from_state = 'admitted'
        OR from_state = 'starting' OR from_state = 'dispatch_intent' OR from_state = 'active'
        OR from_state = 'dispatch_ambiguous' OR from_state = 'recovery_required'
    ),
    to_state TEXT CHECK (
        to_state IS NULL OR to_state = 'queued' OR to_state = 'admitted'
        OR to_state = 'starting' OR to_state = 'dispatch_intent' OR to_state = 'active'
        OR to_state = 'completed' OR to_state = 'failed' OR to_state = 'cancelled'
        OR to_state = 'queue_timeout' OR to_state = 'dispatch_ambiguous'
        OR to_state = 'recovery_required'
    ),
    at_ms INTEGER NOT NULL,
    request_id TEXT
) STRICT;
