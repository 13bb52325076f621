"""The hub's process: moves bytes and owns tasks; what is admitted, refused or routed is decided in `wakehub.hub`."""
