import enum

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int


class ContactMode(enum.IntEnum):
    r"""What a contact of a `hj.mechanics.MechanicalSystem` does.

    The first four are the contact modes. A contact that has just begun to open or to
    slip is *departing*: what it departs from is zero for a moment, and so cannot be
    watched. So its acceleration is, until that ends. The vector field is that of
    `FREE`, or of sliding; `ContactMode.physical` makes no difference between them.

    - `FREE`: not touching. Touches down where the gap decreases through zero.
    - `STICKING`: closed, and not moving along the surface.
    - `FORWARD`: closed, and sliding with a positive tangential velocity.
    - `BACKWARD`: closed, and sliding with a negative one.
    - `LIFTING`: free, and departing from its surface; or held at it by others, without
        a force of its own.
    - `RISING`: free, with a gap that grows. Only if the system logs apexes.
    - `SLIPPING_FORWARD`, `SLIPPING_BACKWARD`: sliding, and departing from rest.
    - `SLIDING`, `SLIPPING`: what the modes of sliding and slipping are where contacts
        have two tangential directions. One that creeps is `SLIPPING`, too.
    - `JAMMED`: closed and sliding, but no contact forces agree with that (Painlevé's
        paradox). An impulse follows in the same instant: an impact without a collision.

    A simulation in which one of these occurs has failed:

    - `UNSOLVABLE`: no contact forces, nor impulses, were found that satisfy the laws of
        contact and friction.
    - `CROWDED`: more contacts are closed at once than `most_closed` says.
    - `INCONSISTENT`: the start was below ground, or moved against its contact mode.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Figure 8: `FREE` is U, `LIFTING` and
        `RISING` are V, `STICKING` is C, and the others are S.
    """

    CROWDED = -3
    INCONSISTENT = -2
    UNSOLVABLE = -1
    FREE = 0
    STICKING = 1
    FORWARD = 2
    BACKWARD = 3
    LIFTING = 4
    RISING = 5
    SLIPPING_FORWARD = 6
    SLIPPING_BACKWARD = 7
    SLIDING = 8
    SLIPPING = 9
    JAMMED = 10

    @staticmethod
    def physical(mode: ArrayLike) -> Int[Array, "..."]:
        """Contact modes without those that only say what is watched: `LIFTING` and
        `RISING` become `FREE`, and those of slipping those of sliding.

        **Arguments:**

        - `mode`: integers, in an array of any shape: `sol.modes`, or modes of the event
            log, whose padding, -1, stays.

        **Returns:**

        An array of this shape and type.

        !!! example

            ```python
            modes = lambda log: (log.mode_before, log.mode_after)
            log = eqx.tree_at(modes, sol.events, replace_fn=ContactMode.physical)
            ```
        """
        mode = jnp.asarray(mode)
        for watching, physical in _PHYSICAL.items():
            mode = jnp.where(mode == watching, physical, mode)
        return mode


_PHYSICAL = {
    int(ContactMode.LIFTING): int(ContactMode.FREE),
    int(ContactMode.RISING): int(ContactMode.FREE),
    int(ContactMode.SLIPPING_FORWARD): int(ContactMode.FORWARD),
    int(ContactMode.SLIPPING_BACKWARD): int(ContactMode.BACKWARD),
    int(ContactMode.SLIPPING): int(ContactMode.SLIDING),
}
