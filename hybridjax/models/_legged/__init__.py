"""What has legs. May import what `_bodies` may, and `_bodies`."""
