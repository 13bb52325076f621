"""The NDJSON channel mesh: a compatible hub, its client commands and the bridge to the record (intercom.md)."""
