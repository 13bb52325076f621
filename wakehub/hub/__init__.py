"""All live state of the hub: who is connected, who is known, what waits for whom (awh1.md §5).

Synchronous and without I/O: nothing here awaits, reads a clock, draws randomness, opens a file or logs. It needs no
lock, cannot be cancelled half-way, and a state machine can drive it without an event loop.
"""
