"""What can come of a case other than that the hub did what the specification says."""


class Mismatch(Exception):
    """The hub did something else: what came instead, in words, safe to show."""


class NotApplicable(Exception):
    """The case cannot tell here, and why: a machine too slow, ids too long."""


class Stop(Exception):
    """There is no sense in going on: the hub is gone, or an agent of a bundle is in use by somebody else."""
