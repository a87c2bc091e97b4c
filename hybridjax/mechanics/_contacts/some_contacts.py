"""Of many contacts, those few that may be closed at once."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._systems.parameter import in_dtype
from .._dynamics.dot import dot
from .._dynamics.elimination import in_order
from .dry_friction import with_dry


class SomeContacts(eqx.Module):
    """A mechanical system of which only some contacts are looked at, one in each slot;
    or all, where there is no bound on how many may be closed.

    Choices are sums and products with zeros and ones, not indices: the transposes of
    these would be scatters, each of which is a loop on CPUs.
    """

    whole: Any
    chosen: Bool[Array, "slots n"] | None
    friction: Float[Array, " slots"]
    static_friction: Float[Array, " slots"]
    dry_friction: Float[Array, " slots"] | None

    def __init__(self, system, dtype, last=None):
        """Those contacts for which `last` is the least, in the order of all; every one
        if it is `None`, or nothing is said of how many there may be."""
        self.whole = in_dtype(system, dtype)
        self.chosen = None
        if last is not None and system.most_closed is not None:
            index = np.arange(system.n_contacts)
            earlier = index[None] < index[:, None]
            # As sorting would find out; but that is done by calls for each pair.
            first = (last[None] < last[:, None]) | (
                (last[None] == last[:, None]) & earlier
            )
            among = jnp.sum(first, axis=1) < system.most_closed
            _, place, _ = in_order(among)
            self.chosen = place[None] == np.arange(system.most_closed)[:, None]
        every = lambda each: self.take(with_dry(self.whole, each, 1))
        self.friction = every(self.whole.friction)
        self.static_friction = every(self.whole.static_friction)
        self.dry_friction = None
        if system.dry:
            forces = self.whole.dry_friction[np.array(system.dry)]
            others = system.n_contacts - len(system.dry)
            self.dry_friction = self.take(jnp.pad(forces, (others, 0)))

    @property
    def n_contacts(self) -> int:
        chosen = self.chosen
        return self.whole.n_contacts if chosen is None else chosen.shape[0]

    @property
    def is_dry(self) -> Bool[Array, " slots"]:
        n, dry = self.whole.n_contacts, len(self.whole.dry)
        return self.take(jnp.arange(n) >= n - dry)

    @property
    def tangents(self):
        return self.whole.tangents

    @property
    def body(self):
        return self.whole.body

    @property
    def apex(self) -> bool:
        return self.whole.apex

    @property
    def stabilization(self):
        return self.whole.stabilization

    @property
    def rest_speed(self):
        return self.whole.rest_speed

    def restitution(self, q, v, args):
        e = self.whole.restitution(q, v, args)
        return e if jnp.ndim(e) == 0 else self.take(with_dry(self.whole, e))

    def take(self, each):
        """What belongs to each contact, for those in the slots."""
        return each if self.chosen is None else _picked(self.chosen, each)

    def take_rows(self, rows):
        """The same of the rows of a `Point`, or one number for each."""
        if self.chosen is None:
            return rows
        blocks = rows.reshape(-1, self.whole.n_contacts, *rows.shape[1:])
        if rows.ndim == 1:
            return jnp.concatenate([self.take(block) for block in blocks])
        chosen = self.chosen.astype(rows.dtype)
        return jnp.concatenate([dot(chosen, block) for block in blocks])

    def put(self, each, others):
        """Back: contacts that are in no slot have what the `others` have."""
        if self.chosen is None:
            return each
        there = _picked(self.chosen.T, each)
        return jnp.where(jnp.any(self.chosen, axis=0), there, others)


def _picked(chosen: Bool[Array, "m k"], each):
    """The one of `each` that is chosen in each row, or zero."""
    picked = jnp.where(chosen, each[None], jnp.zeros_like(each)[None])
    return jnp.sum(picked, axis=1, dtype=each.dtype)
