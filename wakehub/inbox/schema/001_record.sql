-- The record (receive.md §1; formats.md, Rows, Leases). Times are milliseconds since the epoch. A row that is still
-- "open" is unread or claimed; every index that reading uses holds open rows only, so that history costs nothing.

CREATE TABLE message (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    sender        TEXT NOT NULL,
    recipient     TEXT NOT NULL,
    rseq          INTEGER NOT NULL CHECK (rseq > 0),
    generation    INTEGER NOT NULL CHECK (generation > 0),
    re            TEXT,
    group_id      TEXT,
    class         TEXT NOT NULL CHECK (class IN ('normal', 'fyi')),
    hops          INTEGER NOT NULL CHECK (hops >= 0),
    signed_hops   INTEGER NOT NULL CHECK (signed_hops BETWEEN 0 AND 255),
    created_ms    INTEGER NOT NULL,
    expires_ms    INTEGER NOT NULL CHECK (expires_ms > created_ms),
    stored_ms     INTEGER NOT NULL,
    media_type    TEXT NOT NULL,
    size          INTEGER NOT NULL CHECK (size >= 0),
    digest        BLOB NOT NULL CHECK (length(digest) = 32),
    attachments   INTEGER NOT NULL CHECK (attachments >= 0),
    key_id        TEXT,
    signature     BLOB CHECK (length(signature) = 64),
    origin        TEXT NOT NULL,
    state         TEXT NOT NULL DEFAULT 'unread'
                  CHECK (state IN ('unread', 'claimed', 'handed_off', 'failed', 'expired')),
    attempts      INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0,
    redelivery    INTEGER NOT NULL DEFAULT 0,
    retry_ms      INTEGER NOT NULL DEFAULT 0,
    claim_token   BLOB,
    claimed_ms    INTEGER,
    claim_void_ms INTEGER,
    hinted_ms     INTEGER,
    hint_code     INTEGER,
    done_ms       INTEGER,
    body          BLOB,
    UNIQUE (recipient, rseq),
    CHECK ((state = 'claimed') = (claim_token IS NOT NULL)),
    CHECK ((state IN ('unread', 'claimed')) = (done_ms IS NULL)),
    CHECK ((state = 'expired') = (body IS NULL))
) STRICT;

CREATE INDEX message_open ON message (recipient, rseq) WHERE state IN ('unread', 'claimed');
CREATE INDEX message_open_by_sender ON message (recipient, sender, rseq) WHERE state IN ('unread', 'claimed');
CREATE INDEX message_open_by_expiry ON message (expires_ms) WHERE state IN ('unread', 'claimed');
CREATE INDEX message_unhinted ON message (hint_code, seq)
    WHERE state IN ('unread', 'claimed') AND class = 'normal' AND hinted_ms IS NULL;
CREATE INDEX message_done ON message (done_ms) WHERE done_ms IS NOT NULL;
CREATE INDEX message_pair ON message (sender, recipient, stored_ms);

CREATE TABLE attachment (
    message  INTEGER NOT NULL REFERENCES message (seq) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    name     TEXT NOT NULL,
    size     INTEGER NOT NULL CHECK (size >= 0),
    digest   BLOB NOT NULL CHECK (length(digest) = 32),
    PRIMARY KEY (message, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX attachment_digest ON attachment (digest);

CREATE TABLE event (
    seq      INTEGER PRIMARY KEY,
    message  INTEGER NOT NULL REFERENCES message (seq) ON DELETE CASCADE,
    kind     TEXT NOT NULL CHECK (kind IN ('stored', 'hint_refused', 'hinted', 'claimed', 'attempt_failed', 'failed',
                                           'expired', 'handed_off', 'answered')),
    at_ms    INTEGER NOT NULL,
    by       TEXT NOT NULL,
    proof    TEXT NOT NULL,
    code     INTEGER,
    detail   TEXT NOT NULL,
    retry_ms INTEGER,
    woken_by TEXT
) STRICT;

CREATE INDEX event_message ON event (message, seq);

-- The last rseq of each recipient, and the enrolment of the name that its rows belong to.
CREATE TABLE box (
    name       TEXT PRIMARY KEY,
    generation INTEGER NOT NULL CHECK (generation > 0),
    rseq       INTEGER NOT NULL CHECK (rseq >= 0)
) STRICT, WITHOUT ROWID;

-- Ids of envelopes that came from elsewhere: each is taken once, also after its row was pruned.
CREATE TABLE taken (
    id       TEXT PRIMARY KEY,
    until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE lease (
    name            TEXT PRIMARY KEY,
    token           BLOB NOT NULL CHECK (length(token) = 16),
    agent_id        TEXT NOT NULL,
    pid             INTEGER NOT NULL,
    started         TEXT NOT NULL,
    boot            TEXT NOT NULL,
    pid_namespace   INTEGER NOT NULL,
    session         TEXT,
    host            TEXT NOT NULL,
    since_ms        INTEGER NOT NULL,
    renewed_ms      INTEGER NOT NULL,
    renewed_mono_ms INTEGER NOT NULL,
    position        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_token ON lease (token);

CREATE TABLE past_lease (
    seq      INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    token    BLOB NOT NULL,
    agent_id TEXT NOT NULL,
    pid      INTEGER NOT NULL,
    host     TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    reason   TEXT NOT NULL CHECK (reason IN ('released', 'displaced', 'expired', 'died')),
    by_pid   INTEGER
) STRICT;

CREATE INDEX past_lease_name ON past_lease (name, ended_ms);
CREATE INDEX past_lease_token ON past_lease (token);
