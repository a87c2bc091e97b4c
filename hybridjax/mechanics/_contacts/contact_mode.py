import enum


class ContactMode(enum.IntEnum):
    r"""What a contact of a [`hybridjax.mechanics.MechanicalSystem`][] does.

    The first four are the contact modes. A contact that has just begun to open or to
    slip is *departing*: what it departs from is zero for a moment, and so cannot be
    watched. So its acceleration is, until that ends. The vector field is that of
    `FREE`, or of sliding.

    - `FREE`: not touching. Touches down where the gap decreases through zero.
    - `STICKING`: closed, and not moving along the surface.
    - `FORWARD`: closed, and sliding with a positive tangential velocity.
    - `BACKWARD`: closed, and sliding with a negative one.
    - `LIFTING`: free, and departing from its surface.
    - `RISING`: free, with a gap that grows. Only if the system logs apexes.
    - `SLIPPING_FORWARD`, `SLIPPING_BACKWARD`: sliding, and departing from rest.

    A simulation in which one of these occurs has failed:

    - `UNSOLVABLE`: no contact forces, or impulses, satisfy the laws of contact and
        friction (or more than one do): Painlevé's paradox.
    - `INCONSISTENT`: the start was below ground, or moved against its contact mode.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Figure 8: `FREE` is U, `LIFTING` and
        `RISING` are V, `STICKING` is C, and the others are S.
    """

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
