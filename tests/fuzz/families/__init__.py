"""The families of systems: one file each, with its reference."""
