"""A token bucket in whole numbers (awh1.md §5.5)."""


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` tokens a second; starts full.

    Counts milli-tokens and carries what a time step leaves below one, so that no rounding ever adds or loses rate.
    Times are monotonic microseconds; a step back gains nothing.
    """

    __slots__ = ("_at_us", "_burst", "_level", "_rate", "_rest")

    def __init__(self, rate: int, burst: int, now_us: int) -> None:
        self._rate = rate
        self._burst = burst * 1000
        self._level = self._burst
        self._rest = 0
        self._at_us = now_us

    def take(self, tokens: int, now_us: int) -> bool:
        """Take `tokens` and return True, or leave all as it is and return False."""
        elapsed = now_us - self._at_us
        if elapsed > 0:
            self._at_us = now_us
            gained, self._rest = divmod(elapsed * self._rate + self._rest, 1000)
            self._level += gained
            if self._level >= self._burst:
                self._level = self._burst
                self._rest = 0
        cost = tokens * 1000
        if cost > self._level:
            return False
        self._level -= cost
        return True
