from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp


class LagrangianTerms(eqx.Module):
    """The mass matrix and the forces of a Lagrangian, at most quadratic in `v`."""

    lagrangian: Callable
    forces: Callable | None

    def mass_matrix(self, q, args):
        momentum = jax.grad(lambda v: self.lagrangian(q, v, args))
        return jax.jacfwd(momentum)(jnp.zeros_like(q))

    def effort(self, t, q, v, args):
        zero = jnp.zeros_like(q)
        drift = lambda q: jax.grad(lambda v: self.lagrangian(q, v, args))(zero)
        _, transport = jax.jvp(drift, (q,), (v,))
        force = jax.grad(lambda q: self.lagrangian(q, zero, args) + drift(q) @ v)(q)
        force = force - transport
        return force if self.forces is None else force + self.forces(t, q, v, args)
