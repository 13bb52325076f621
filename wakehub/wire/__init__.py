"""AWH1 without I/O: bytes in, frames and payloads out, and back to the same bytes (awh1.md §1–§3).

Standard library only; nothing here awaits, reads a clock, draws randomness, opens a file or logs.
"""
