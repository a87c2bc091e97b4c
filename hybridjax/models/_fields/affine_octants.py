import equinox as eqx
import jax.numpy as jnp
import jax.scipy
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from ..._systems.event_selected import EventSelectedSystem
from .piecewise_constant import row_of


def affine_octants() -> EventSelectedSystem:
    r"""A vector field in space that is affine in each octant, to test integrators with.

    | | $x < 0$ | $x \ge 0$ |
    | --- | --- | --- |
    | $\dot x$, $y < 0$ | $-y + 1$ | $-2y + 1$ |
    | $\dot x$, $y \ge 0$ | $y + 1$ | $10x + 1$ |
    | $\dot y$, $y < 0$ | $x + 1$ | $x/2 + 2$ |
    | $\dot y$, $y \ge 0$ | $-x + 1$ | $y + 1$ |

    $\dot z$ is $-z - 1$ for $z > 0$, and $3z - 1$ for $z \le 0$. The surfaces are the
    coordinate planes. From (-0.4, -0.15, 0.3) the trajectory crosses all of them before
    $t = 0.5$: first $y = 0$, then $z = 0$, then $x = 0$.
    `hj.models.affine_octants_flow` is its exact flow.

    **Returns:**

    A `hj.EventSelectedSystem` with the state $(x, y, z)$ and the event
    functions $(x, y, -z)$. Every surface is crossed once.

    ??? cite "Reference"

        Anderson, Revzen, *Rapid integrator for a class of multi-contact systems*,
        Table 4.1.
    """
    matrices, offsets = _table()
    field = _AffineField(jnp.asarray(matrices), jnp.asarray(offsets))
    return EventSelectedSystem(field, _planes, np.zeros((3, 3), bool))


def affine_octants_flow(
    t: Float[Array, ""], x0: Float[Array, "3"]
) -> tuple[Float[Array, "3"], Float[Array, "3"]]:
    """The exact flow of `hj.models.affine_octants`, by matrix exponentials.

    For initial states from which the surfaces are crossed in the order $y$, $z$, $x$,
    as from (-0.4, -0.15, 0.3). Differentiable.

    **Arguments:**

    - `t`: the time since `x0`.
    - `x0`: the initial state, before all surfaces.

    **Returns:**

    The state at `t`, and the times of the three crossings in their order.
    """
    matrices, offsets = _table()
    b = np.array([-1, -1, -1])
    begin, x = jnp.zeros_like(x0[0]), x0
    state, times = x0, []
    for surface in (1, 2, 0, None):
        linear = matrices[row_of(b)], offsets[row_of(b)]
        state = jnp.where(t >= begin, _affine(*linear, t - begin, x), state)
        if surface is not None:
            root = optx.root_find(
                lambda s, x, linear=linear, j=surface: _affine(*linear, s, x)[j],
                optx.Newton(rtol=1e-13, atol=1e-13),
                jnp.asarray(0.1, x0.dtype),
                args=x,
            ).value
            begin, x = begin + root, _affine(*linear, root, x)
            times.append(begin)
            b[surface] = 1
    return state, jnp.stack(times)


def _table() -> tuple[np.ndarray, np.ndarray]:
    """Of each octant, the matrix and the vector of the field."""
    matrices, offsets = np.zeros((8, 3, 3)), np.zeros((8, 3))
    for x in (-1, 1):
        for y in (-1, 1):
            # Each row: coefficients of x, y, z, and the constant.
            by_x, by_y = {
                (-1, -1): ([0, -1, 0, 1], [1, 0, 0, 1]),
                (1, -1): ([0, -2, 0, 1], [0.5, 0, 0, 2]),
                (-1, 1): ([0, 1, 0, 1], [-1, 0, 0, 1]),
                (1, 1): ([10, 0, 0, 1], [0, 1, 0, 1]),
            }[x, y]
            # The third event function is -z.
            for below, by_z in ((-1, [0, 0, -1, -1]), (1, [0, 0, 3, -1])):
                rows = np.array([by_x, by_y, by_z], float)
                k = row_of(np.array([x, y, below]))
                matrices[k], offsets[k] = rows[:, :3], rows[:, 3]
    return matrices, offsets


def _affine(matrix, offset, s, x):
    """The flow of x' = A x + c, for a time `s`: the exponential of ((A, c), (0, 0))."""
    generator = jnp.zeros((4, 4), x.dtype)
    generator = generator.at[:3, :3].set(matrix).at[:3, 3].set(offset)
    flow = jax.scipy.linalg.expm(s * generator)
    return flow[:3, :3] @ x + flow[:3, 3]


class _AffineField(eqx.Module):
    matrices: Float[Array, "8 3 3"]
    offsets: Float[Array, "8 3"]

    def __call__(self, t, x, b, args):
        k = row_of(b)
        product = jnp.matmul(self.matrices[k], x, precision="highest")
        return product + self.offsets[k]


def _planes(t, x, args):
    return x * jnp.asarray([1, 1, -1], x.dtype)
