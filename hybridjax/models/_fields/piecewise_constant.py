import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter


def piecewise_constant(
    table: ArrayLike, normals: ArrayLike | None = None
) -> EventSelectedSystem:
    r"""A vector field that is constant between hyperplanes through the origin.

    $$\dot x = \mathbb{1} + \Delta(b), \qquad b_j = \operatorname{sign} h_j(x), \qquad
    h(x) = x \text{ or } h(x) = N x.$$

    It is event-selected, so that every surface is crossed once, if $N (\mathbb{1} +
    \Delta(b)) > 0$ for all $b$; without `normals` that is $\Delta(b) > -1$. At the
    origin all surfaces meet: there its flow has up to $n!$ pieces.

    **Arguments:**

    - `table`: $\Delta$, of shape `(2**n, d)`. Row `i` belongs to the `b` of which entry
        `j` is +1 where bit `j` of `i` is 1, and -1 where it is 0: row 0 is before all
        the surfaces, the last row after all of them.
    - `normals`: $N$, of shape `(n, d)`: the surface normals, as rows. `None` is the
        identity, with `n = d`.

    **Returns:**

    A `hj.EventSelectedSystem` with an array of shape `(d,)` as its state,
    and `b`, of shape `(n,)`, as its mode. Guard `j` is $-h_j$, watched where
    $b_j = -1$.

    **Raises:**

    - `ValueError` if the shapes do not fit.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*,
        Section 3.1, (11).
    """
    table = parameter(table)
    if table.ndim != 2:
        raise ValueError(
            "Argument `table` must be a matrix of shape (2**n, d), but its shape is "
            f"{table.shape}."
        )
    d = table.shape[1]
    if normals is None:
        n, event_functions = d, _coordinates
    else:
        normals = parameter(normals)
        if normals.ndim != 2 or normals.shape[1] != d:
            raise ValueError(
                "Argument `normals` must be a matrix with one column per column of "
                f"`table`, shape (n, {d}), but its shape is {normals.shape}."
            )
        n, event_functions = normals.shape[0], _Projections(normals)
    if table.shape[0] != 2**n:
        raise ValueError(
            f"Argument `table` must have one row per sign vector of {n} surfaces, "
            f"{2**n} rows, but its shape is {table.shape}."
        )
    return EventSelectedSystem(_ConstantField(table), event_functions)


def linear_table(delta: ArrayLike, d: int) -> Float[Array, "rows d"]:
    r"""The table of $\Delta(b) = -\delta b$, for
    `hj.models.piecewise_constant`.

    With it the derivative of the flow through the origin is linear, although all
    surfaces meet there: it multiplies every tangent by $(1 - \delta)/(1 + \delta)$.

    **Arguments:**

    - `delta`: $\delta$, between -1 and 1.
    - `d`: number of surfaces and of states.

    ??? cite "Reference"

        Council, Revzen, Burden, as above, (12).
    """
    bits = (np.arange(2**d)[:, None] >> np.arange(d)[None, :]) & 1
    delta = parameter(delta)
    return -delta * jnp.asarray(2 * bits - 1, delta.dtype)


class _ConstantField(eqx.Module):
    table: Float[Array, "rows d"]

    def __call__(self, t, x, b, args):
        return 1 + self.table[row_of(b)]


def row_of(b):
    """The row of a sign vector in a table: bit `j` is 1 where entry `j` is +1."""
    return ((b > 0) * 2 ** np.arange(b.shape[0], dtype=np.int32)).sum()


class _Projections(eqx.Module):
    normals: Float[Array, "n d"]

    def __call__(self, t, x, args):
        # A default-precision product has ten bits on some accelerators.
        return jnp.matmul(self.normals, x, precision="highest")


def _coordinates(t, x, args):
    return x
