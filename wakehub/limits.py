"""Every number of the system, once.

The first part is the AWH1 specification's (section in brackets); the second is ours. Sizes are bytes, counts are
counts, and each time carries its unit in its name. The relations between the numbers are asserted at the end, so
that a changed limit that would break another one fails at import.
"""

from typing import Final, NamedTuple, Self

# --- AWH1, the wire [§1, §2] ---
MAGIC: Final = b"AWH1"
VERSION: Final = 1
PREFIX_BYTES: Final = 4
HEADER_BYTES: Final = 24
MAX_ID_BYTES: Final = 128
MAX_PAYLOAD_BYTES: Final = 1024
MAX_FRAME_BYTES: Final = HEADER_BYTES + 2 * MAX_ID_BYTES + MAX_PAYLOAD_BYTES
MAX_WAKE_PAYLOAD_BYTES: Final = 256
MAX_WELCOME_PAYLOAD_BYTES: Final = 256
MAX_ERROR_PAYLOAD_BYTES: Final = 256
MAX_PING_BYTES: Final = 32
WELCOME_BYTES: Final = 25
MIN_TOPIC_BYTES: Final = 2
MAX_TOPIC_BYTES: Final = 64
MAX_TOPICS_PER_LIST: Final = 8
MAX_TOPICS_PER_SESSION: Final = 32
NONCE_BYTES: Final = 32
KEY_BYTES: Final = 32
SEED_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
DIGEST_BYTES: Final = 32

# --- AWH1, identity [§4] ---
MAX_CERTIFICATE_BYTES: Final = 390
MAX_PRINCIPAL_BYTES: Final = 128
MAX_HUB_ID_BYTES: Final = 64
MAX_STAMP_BYTES: Final = 32
MAX_DELEGATION_SECONDS: Final = 43_200
CLOCK_LEEWAY_SECONDS: Final = 30
MAX_ALLOWLIST_BYTES: Final = 1024 * 1024
MAX_ALLOWLIST_VALID_SECONDS: Final = 43_200
MAX_PREFIXES: Final = 3
MAX_PREFIX_BYTES: Final = 63
ALLOWLIST_CACHE_SECONDS: Final = 2
CERTIFICATE_CACHE_ENTRIES: Final = 1024

# --- AWH1, the connection [§5] ---
DEFAULT_MAX_CONNECTIONS: Final = 256
HANDSHAKE_DEADLINE_MS: Final = 5_000
HANDSHAKE_RATE_PER_SECOND: Final = 4
HANDSHAKE_BURST: Final = 8
FRAME_RATE_PER_SECOND: Final = 500
FRAME_BURST: Final = 2_000
RATE_LIMITED_ANSWER_INTERVAL_MS: Final = 100
ROUTER_SHARDS: Final = 16
MAX_QUEUED_FRAMES: Final = 256
MAX_QUEUED_BYTES: Final = 65_536
MAX_EGRESS_BYTES: Final = 33_554_432
MAX_KNOWN_AGENTS: Final = 1_024
MAX_PENDING_IDS: Final = 64
RECONNECT_BASE_MS: Final = 250
RECONNECT_JITTER_MS: Final = 750
REVALIDATE_SECONDS: Final = 1
STALE_GRACE_SECONDS: Final = 5
TEARDOWN_FLUSH_MS: Final = 2_000
DRAIN_MS: Final = 5_000
MAX_STATS_READERS: Final = 4
ACCEPT_PAUSE_MS: Final = 100

# --- AWH1, start-up [§6] ---
WANTED_DESCRIPTORS: Final = 4_096
RESERVED_DESCRIPTORS: Final = 32
MIN_CONNECTIONS: Final = 8
MAX_SOCKET_DIRECTORY_BYTES: Final = 87
SOCKET_CHECK_SECONDS: Final = 15

# --- AWH1, measurement [§7] ---
HISTOGRAM_BOUNDS_US: Final = (
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
)  # fmt: skip

# --- ours: allowlist and delegation ---
ALLOWLIST_VALID_SECONDS: Final = 60
ALLOWLIST_RESIGN_SECONDS: Final = 20
DEFAULT_DELEGATION_SECONDS: Final = 3_600
RENEW_BEFORE_END_SECONDS: Final = 600

# --- ours: files of keys ---
MAX_FILE_STEM: Final = 120
FILE_STEM_HEAD: Final = 80
MAX_KEY_FILE_BYTES: Final = 4_096
MAX_BUNDLE_BYTES: Final = 8_192
MAX_AUDIT_BYTES: Final = 64 * 1024 * 1024
MAX_AUDIT_LINE_BYTES: Final = 8_192

# --- ours: hub ---
LOG_REPEAT_SECONDS: Final = 10
RECEIVE_BYTES: Final = 4_096
PROVEN_IDS: Final = 512
PUMP_BATCH: Final = 64
LISTEN_BACKLOG: Final = 512
EGRESS_RESERVE_SHARE: Final = 8
STATS_DEADLINE_MS: Final = 2_000

# --- ours: client ---
RECONNECT_CAP_MS: Final = 60_000
RECONNECT_CAP_RESTARTING_MS: Final = 2_000
RECONNECT_RESET_AFTER_SECONDS: Final = 30
UNAUTHORIZED_RETRY_SECONDS: Final = 60
DISPLACED_RECONNECT_MS: Final = 5_000
MAX_BACKSTOP_SECONDS: Final = 60
CLOCK_DRIFT_SECONDS: Final = 5
CLOCK_CHECK_MS: Final = 1_000
FILE_WATCH_MS: Final = 100
ENROLMENT_WAIT_SECONDS: Final = 5
RECORD_WATCH_MS: Final = 50
PARENT_WATCH_MS: Final = 1_000
PROOF_FIRST_POLL_MS: Final = 1
PROOF_POLL_CAP_MS: Final = 100
STOP_IN_HAND_MS: Final = 1_000
MAIL_WAITS_AFTER_SECONDS: Final = 1
CLIENT_READ_BYTES: Final = 64 * 1024
BACKLOG_RETRY_MS: Final = 20
POKE_GRACE_MS: Final = 500
MAX_ANSWER_LINE_BYTES: Final = 4_096
PEEK_ROWS: Final = 100

# --- ours: the record ---
MAX_BODY_BYTES: Final = 256 * 1024
DEFAULT_TTL_SECONDS: Final = 86_400
MAX_TTL_SECONDS: Final = 7 * 86_400
KEEP_HANDED_OFF_SECONDS: Final = 7 * 86_400
STALE_AFTER_SECONDS: Final = 3_600
LEASE_RENEW_SECONDS: Final = 30
LEASE_VOID_SECONDS: Final = 300
LEASE_RECHECK_SECONDS: Final = 2
ROW_RETRY_FIRST_SECONDS: Final = 1
ROW_RETRY_CAP_SECONDS: Final = 600
SQLITE_BUSY_MS: Final = 10_000
SQLITE_TURN_MS: Final = 100
MAX_ATTACHMENTS: Final = 16
MAX_ATTACHED_BYTES: Final = 64 * 1024 * 1024
COPY_BYTES: Final = 1024 * 1024
COLLECT_SECONDS: Final = 3_600
MAX_MEDIA_TYPE_BYTES: Final = 128
MAX_NOTE_BYTES: Final = 512
MAX_HOPS: Final = 16
MAX_PAIR_PER_MINUTE: Final = 60
FAILURES_BEFORE_PASSED: Final = 3
BACKEND_DEADLINE_SECONDS: Final = 30
PROGRAM_DEADLINE_SECONDS: Final = 86_400
CLAIM_GRACE_SECONDS: Final = 30
KEEP_TAKEN_IDS_SECONDS: Final = 8 * 86_400
SWEEP_ROWS: Final = 256
MAX_RECORD_SETTING: Final = 10_000
MAX_ENVELOPE_BYTES: Final = 400 * 1024

# --- ours: backends ---
MAX_HOOK_VARIABLE_BYTES: Final = 1_024
SESSION_EXIT_AFTER_SECONDS: Final = 600
MAX_SESSION_FILE_BYTES: Final = 64 * 1024
MAX_SETTINGS_BYTES: Final = 1024 * 1024
SESSION_CONNECT_MS: Final = 1_500
SESSION_POST_MS: Final = 5_000
SESSION_LINGER_MS: Final = 150
SESSION_PAUSE_MS: Final = 2_000
SESSION_PROOF_POLL_MS: Final = 250
SESSION_PROOF_SECONDS: Final = 10
SESSION_SECOND_POST_SECONDS: Final = 30
SESSION_RETRY_SECONDS: Final = 60
SESSION_DEADLINE_SECONDS: Final = 150
MAX_LOOK_BYTES: Final = 8 * 1024 * 1024
MAX_LOOKS: Final = 256

# --- ours: publisher ---
MAX_POKE_IDS: Final = 256
POKE_DEADLINE_MS: Final = 2_000
POKE_ANSWER_MARGIN_MS: Final = 200
MAX_POKE_LINE_BYTES: Final = 16 * 1024
MAX_POKE_CLIENTS: Final = 32
WAKE_BATCH: Final = 64
PROOF_DEADLINE_MS: Final = 2_000
PUBLISHER_TICK_MS: Final = 500
HUB_SOCKET_POLL_MS: Final = 100
RESIGN_RETRY_SECONDS: Final = 5
RECORD_RETRY_SECONDS: Final = 5
PUBLISHER_UNAUTHORIZED_RETRY_SECONDS: Final = 2
SWEEP_SECONDS: Final = 5
SPOOL_BATCH: Final = 64
SPOOL_SCAN: Final = 4_096
SPOOL_RETRY_SECONDS: Final = 10

# --- ours: the supervised tree ---
RESTART_FIRST_MS: Final = 250
RESTART_CAP_MS: Final = 10_000
RESTART_RESET_AFTER_SECONDS: Final = 30
READY_POLL_MS: Final = 50
STOP_GRACE_MS: Final = DRAIN_MS + TEARDOWN_FLUSH_MS

# --- ours: hub and publisher in the background ---
BACKGROUND_START_SECONDS: Final = 10
BACKGROUND_AGAIN_SECONDS: Final = 2
BACKGROUND_IDLE_SECONDS: Final = 900
BACKGROUND_CHECK_SECONDS: Final = 15
BACKGROUND_PROBE_MS: Final = 500
MAX_LOG_BYTES: Final = 1024 * 1024

# --- ours: looking at a running hub ---
CHECK_DEADLINE_MS: Final = 2_000
CHECK_RETRY_MS: Final = 20
MAX_METRICS_BYTES: Final = 1024 * 1024
DEMO_STEP_SECONDS: Final = 9
ROUND_TRIP_LEG_SECONDS: Final = 5
ROUND_TRIP_TTL_SECONDS: Final = 60
OVERDUE_SECONDS: Final = 1_200
NAME_COLUMN: Final = 24  # in a list, a longer name moves its own line only
TOP_REFRESH_MS: Final = 200
TOP_ASK_MS: Final = 1_000
TOP_ANSWER_MS: Final = 1_000  # with TOP_ASK_MS: how old what is said of a daemon can be
LEFTOVER_AFTER_SECONDS: Final = 60
NEARLY_FULL_PERCENT: Final = 80

# --- the NDJSON mesh (intercom.md) ---
MAX_MESH_LINE_BYTES: Final = 1024 * 1024
MAX_MESH_DEPTH: Final = 64
MAX_MESH_QUEUED_LINES: Final = 256
MAX_MESH_QUEUED_BYTES: Final = 1024 * 1024
MESH_WELCOME_MS: Final = 2_000
MESH_STOP_MS: Final = 2_000
MESH_PATH_CHECK_SECONDS: Final = 1
MESH_IDLE_SECONDS: Final = 900
MESH_COMPACT_BYTES: Final = 1024 * 1024

# --- ours: the NDJSON mesh ---
MAX_MESH_MESSAGE_ID: Final = 128
MAX_MESH_SESSION: Final = 64
MAX_MESH_PROJECT_BYTES: Final = 64 * 1024
MESH_PROJECT_LOCK_MS: Final = 5_000
MAX_MESH_PEERS_BYTES: Final = 1024 * 1024
MAX_MESH_OFFSET_BYTES: Final = 64 * 1024
MAX_MESH_CONNECTIONS: Final = 1_024
MAX_MESH_EGRESS_BYTES: Final = 64 * 1024 * 1024
MESH_LOCK_MS: Final = 1_000
MESH_LOCK_POLL_MS: Final = 5
MESH_FLUSH_MS: Final = 300
MESH_HEARTBEAT_SECONDS: Final = 5
MESH_START_SECONDS: Final = 10
MESH_BACKSTOP_SECONDS: Final = 1
MESH_SEEN: Final = 128
MESH_HEAD_BYTES: Final = 256
MESH_BATCH_LINES: Final = 256

# --- ours: trying another hub's conformance ---
CONFORMANCE_CASE_SECONDS: Final = 15
CONFORMANCE_PATIENCE_SECONDS: Final = 5
CONFORMANCE_DEADLINE_SLACK_MS: Final = 1_000
CONFORMANCE_FLOOD_FRAMES: Final = 20_000

# --- ours: the benchmark ---
BENCH_PATIENCE_SECONDS: Final = 30
BENCH_DESCRIPTORS: Final = 1_200

# --- relations ---
assert MAX_FRAME_BYTES == 1304
assert max(MAX_WAKE_PAYLOAD_BYTES, MAX_WELCOME_PAYLOAD_BYTES, MAX_ERROR_PAYLOAD_BYTES) <= MAX_PAYLOAD_BYTES
# The largest legal hello fits its ceiling: key, signature, certificate length, certificate, eight full topics.
assert KEY_BYTES + SIGNATURE_BYTES + 2 + MAX_CERTIFICATE_BYTES + 1 + MAX_TOPICS_PER_LIST * (1 + MAX_TOPIC_BYTES) == 1009
# The largest legal certificate: version, principal, scope, key, hub id, two stamps, signature.
assert (
    1 + (1 + MAX_PRINCIPAL_BYTES) + (1 + len("a2a-hub")) + KEY_BYTES + (1 + MAX_HUB_ID_BYTES)
    + 2 * (1 + MAX_STAMP_BYTES) + SIGNATURE_BYTES
) <= MAX_CERTIFICATE_BYTES  # fmt: skip
# A queue holds at least the welcome and a full pending set, whatever the ids' lengths.
assert 1 + MAX_PENDING_IDS <= MAX_QUEUED_FRAMES
assert (1 + MAX_PENDING_IDS) * (HEADER_BYTES + 2 * MAX_ID_BYTES + MAX_WAKE_PAYLOAD_BYTES) <= MAX_QUEUED_BYTES
# With the default ceiling the hub-wide budget cannot bind [§5.7].
assert DEFAULT_MAX_CONNECTIONS * MAX_QUEUED_BYTES * 2 == MAX_EGRESS_BYTES
assert MAX_PREFIX_BYTES + 1 == MAX_TOPIC_BYTES
# Every socket name fits sockaddr_un on Linux (108) and macOS (104), temporary suffix and NUL included.
assert MAX_SOCKET_DIRECTORY_BYTES + len("/publish.sock~") + 1 <= 104
assert ALLOWLIST_RESIGN_SECONDS * 2 < ALLOWLIST_VALID_SECONDS <= MAX_ALLOWLIST_VALID_SECONDS
assert DEFAULT_DELEGATION_SECONDS <= MAX_DELEGATION_SECONDS
assert LEASE_RENEW_SECONDS * 3 < LEASE_VOID_SECONDS
assert WAKE_BATCH + 1 <= FRAME_BURST
# Who waits in the record sees a change within 50 ms; a lost parent or reader is noticed well within 10 s.
assert RECORD_WATCH_MS <= 50
assert TOP_ASK_MS + TOP_ANSWER_MS <= 2_000
assert PARENT_WATCH_MS + STOP_IN_HAND_MS < 10_000
assert CLOCK_CHECK_MS < CLOCK_DRIFT_SECONDS * 1_000
assert LEASE_RECHECK_SECONDS <= 2
# One message to a session: two posts with their pauses and looks; and it may have to wait for another one before it.
_POST_MS: Final = SESSION_PAUSE_MS + SESSION_CONNECT_MS + SESSION_POST_MS + SESSION_LINGER_MS
_ATTEMPT_SECONDS: Final = 2 * _POST_MS / 1_000 + 2 * SESSION_PROOF_SECONDS + SESSION_SECOND_POST_SECONDS
assert 2 * _ATTEMPT_SECONDS <= SESSION_DEADLINE_SECONDS
assert SESSION_RETRY_SECONDS <= ROW_RETRY_CAP_SECONDS
# An envelope can no longer be taken once its id is forgotten: it has expired by then.
assert MAX_TTL_SECONDS < KEEP_TAKEN_IDS_SECONDS
# The largest body in base64, and the fields around it, fit an envelope: six names or ids, a media type, the keys, a
# certificate in base64, and the names of files, of which every character may be escaped, each with its size and digest.
assert (
    MAX_BODY_BYTES * 4 // 3
    + 2 * 6 * MAX_ID_BYTES
    + MAX_MEDIA_TYPE_BYTES
    + 2 * MAX_CERTIFICATE_BYTES
    + MAX_ATTACHMENTS * (6 * MAX_ID_BYTES + 160)
    + 1024
    <= MAX_ENVELOPE_BYTES
)
assert SPOOL_BATCH <= SPOOL_SCAN
# A chain that changed is seen, and a row that nobody poked about is found, within a second.
assert PUBLISHER_TICK_MS * 2 <= 1_000
assert POKE_ANSWER_MARGIN_MS < POKE_DEADLINE_MS
# The longest poke: 256 quoted ids of 28 characters with their commas, and the rest of the object.
assert MAX_POKE_IDS * (28 + 3) + 256 <= MAX_POKE_LINE_BYTES

# Whoever waits for a lock, and then for the last lines to leave, still ends in time when told to.
assert MESH_LOCK_MS + MESH_FLUSH_MS < MESH_STOP_MS
# The longest line fits an empty queue, and a hub that was killed is back before a listener's backstop ends twice.
assert MAX_MESH_LINE_BYTES <= MAX_MESH_QUEUED_BYTES < MAX_MESH_EGRESS_BYTES
# The window of what was read, 16 hexadecimal digits each, fits the file of the offset.
assert MESH_SEEN * (16 + 4) + 4_096 <= MAX_MESH_OFFSET_BYTES

# A case may await one answer, and the end of a handshake that nobody goes on with.
assert CONFORMANCE_PATIENCE_SECONDS < CONFORMANCE_CASE_SECONDS
assert HANDSHAKE_DEADLINE_MS + CONFORMANCE_DEADLINE_SLACK_MS < CONFORMANCE_CASE_SECONDS * 1_000


class HubLimits(NamedTuple):
    """The hub's limits that ``[hub]`` in ``config.toml`` may change; the defaults are the specification's."""

    max_connections: int = DEFAULT_MAX_CONNECTIONS
    handshake_deadline_ms: int = HANDSHAKE_DEADLINE_MS
    frame_rate_per_second: int = FRAME_RATE_PER_SECOND
    frame_burst: int = FRAME_BURST
    queued_frames: int = MAX_QUEUED_FRAMES
    queued_bytes: int = MAX_QUEUED_BYTES
    egress_bytes: int = MAX_EGRESS_BYTES
    known_agents: int = MAX_KNOWN_AGENTS
    reconnect_base_ms: int = RECONNECT_BASE_MS
    reconnect_jitter_ms: int = RECONNECT_JITTER_MS

    @property
    def egress_reserve(self) -> int:
        """Bytes of `egress_bytes` that wakes leave to answers: as many as one queue holds, and at most an eighth.

        A full hub must be able to say so: 507 leaves a session open (awh1.md §5.4), and an answer that does not fit
        ends it.
        """
        return min(self.queued_bytes, self.egress_bytes // EGRESS_RESERVE_SHARE)

    def checked(self) -> Self:
        """These limits; raises `ValueError` with the name and what it must be when a value cannot work."""
        for name, value in self._asdict().items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
                raise ValueError(f"{name} must be a whole number within 1..{(1 << 31) - 1}")
        if self.max_connections < MIN_CONNECTIONS:
            raise ValueError(f"max_connections must be at least {MIN_CONNECTIONS}")
        return self
