"""wakehub: wakes idle agents on one machine at once, and never loses what woke them."""

__version__ = "0.1.0"
