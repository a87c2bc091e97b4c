"""Dry friction of velocities, as in joints: contacts that are pressed by a given force.

They follow the others. Each has a velocity as its slip, and a gap that is zero. Its
normal row is that of a mass of its own, pressed to its surface by the largest force of
friction. So its normal force is this, whatever the system does, and impulses of others
are none of it. With a coefficient of 1 all else is as for any contact: see
`docs/concepts/contact.md`.
"""

import jax.numpy as jnp
import numpy as np

from ..._jax.diagonal import diagonal
from .tangential import in_space


def with_dry(system, each, value=0):
    """What belongs to each other contact, with that of these."""
    if not system.dry:
        return each
    widths = [(0, len(system.dry))] + [(0, 0)] * (each.ndim - 1)
    return jnp.pad(each, widths, constant_values=value)


def with_slips(system, tangents):
    """The tangents of all. Where there are two directions, these slip along one."""
    rows = np.eye(tangents.shape[-1], dtype=tangents.dtype)[list(system.dry)]
    if tangents.ndim == 3:
        rows = np.stack([rows, np.zeros_like(rows)], axis=1)
    return jnp.concatenate([tangents, rows])


def pressed(system, W):
    """What is to be added to `W`, and to `c`: their masses, which move as easily as the
    velocities, and weights. (In the second direction there is a mass without one.)"""
    n, size = system.n_contacts, W.shape[0]
    own = jnp.where(system.is_dry, diagonal(W)[n : 2 * n], 0)
    none = jnp.zeros_like(own)
    masses = jnp.concatenate([own, none, own] if in_space(size, n) else [own, none])
    weights = jnp.pad(-own * system.dry_friction, (0, size - n))
    return np.eye(size, dtype=W.dtype) * masses[:, None], weights
