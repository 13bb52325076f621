-- How many rows of each recipient were hinted or handed off, when last, and what had made the listener look (empty: it is
-- not known). Counted as it happens, so that nobody has to read history to tell (store.py, rule 7).

CREATE TABLE activity (
    recipient TEXT NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('hinted', 'handed_off')),
    woken_by  TEXT NOT NULL,
    times     INTEGER NOT NULL CHECK (times > 0),
    last_ms   INTEGER NOT NULL,
    PRIMARY KEY (recipient, kind, woken_by)
) STRICT, WITHOUT ROWID;
