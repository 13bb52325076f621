"""The hub-wide egress budget: what may wait in all queues together (awh1.md §5.7)."""


class Budget:
    """`used` of `limit` bytes are charged; both are counted in frame bodies (L)."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def covers(self, size: int, spare: int = 0) -> bool:
        """Whether `size` bytes can be charged so that `spare` are left."""
        return self.used + size <= self.limit - spare

    def charge(self, size: int, spare: int = 0) -> bool:
        """Charge `size` bytes and return True, or change nothing and return False when `spare` would not be left."""
        if not self.covers(size, spare):
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Give `size` charged bytes back."""
        assert size <= self.used, "released more than was charged"
        self.used -= size
