from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from ..._jax.deferred import deferred
from ..._jax.diagonal import diagonal
from ..._jax.tracing import is_traced
from ..._systems.names import Names
from ..._systems.parameter import in_dtype
from ..._systems.system import AbstractSelfStartingSystem
from .coordinates import pull_back, qdot
from .dot import dot
from .formulation import AbstractFormulation, Constraints, IndexOne
from .inertia import accelerate, inertia, is_regular, SINGULAR
from .least_solve import least_solve
from .shapes import check_shapes


class Multibody(AbstractSelfStartingSystem):
    r"""A mechanical system with bilateral constraints.

    $$M(q) \dot v + C(q, v) v = f(t, q, v) - \Phi_q^\top \lambda, \qquad
    \dot q = N(q) v, \qquad \Phi(t, q) = 0.$$

    By default $N$ is the identity: velocities are the rates of the configuration.

    On its own it is a hybrid system without events. It is also a callable
    `(t, x, args) -> dx/dt`, a mode of a `hj.HybridAutomaton`: what happens
    at events is then said by transitions. Their resets can be

    - left out, where only accelerations change: by forces, masses, or constraints that
        end;
    - `hj.mechanics.Multibody.plastic_impact` of the multibody system of the
        mode after the event, where constraints begin;
    - made with `hj.mechanics.Multibody.complete_velocity`, where independent
        velocities jump, in a way that is known.

    !!! example

        ```python
        swinging = Multibody(mass_matrix, effort, pinned)  # at a hand
        flying = Multibody(mass_matrix, effort)
        system = hj.HybridAutomaton(
            {"swinging": swinging, "flying": flying},
            [
                hj.Transition("swinging", "flying", release),
                hj.Transition("flying", "swinging", reach, swinging.plastic_impact),
            ],
        )
        ```

    **Arguments:**

    - `mass_matrix`: callable `(q, args) -> M`, a symmetric positive definite matrix of
        shape `(d, d)`; or the vector of its diagonal, of shape `(d,)`, if the others
        are zero. The Coriolis terms $C v$ are derived from it.
    - `effort`: callable `(t, q, v, args) -> f`, the applied and internal forces, of
        shape `(d,)`.
    - `constraints`: callable `(t, q, args) -> Phi`, of shape `(m,)`, or `None`.
    - `formulation`: `hj.mechanics.IndexOne` or
        `hj.mechanics.Penalty`.
    - `velocity_to_qdot`: callable `(q, v) -> dq/dt`, linear in `v`: $N(q) v$, with $N$
        of full rank. `None` is the identity. Mass matrix and effort are those of `v`.
        For joints with quaternions: `hj.mechanics.ball_joint`,
        `hj.mechanics.free_joint`.
    - `bias`: callable `(q, v, args) -> C v`, of shape `(d,)`: the Coriolis terms, if
        they are known, as those of a robot are by recursion from link to link (its
        weight may be among them, as in MuJoCo's `qfrc_bias`). The mass matrix is then
        not differentiated for them. `None`: they are derived from it.

    **State:** the pair `(q, v)` of configuration and velocity, of shape `(d,)` each; or
    of shapes `(n,)` and `(d,)`, with a `velocity_to_qdot`. At the start it must satisfy
    the constraints to about 1e-3 (float64) or 3e-3 (float32) of its size, as where
    another simulation ended: see `hj.mechanics.consistent_state`. What remains of their
    violation is then removed, so that a derivative with respect to the initial state,
    or to what is in the constraints, is that for neighbouring states that satisfy them.

    **Mode:** the integer 0. It may be left out in `hj.simulate`.

    **Raises:**

    - `ValueError` for arguments of wrong shape, and at the start if the mass matrix is
        not positive definite, or if the state does not satisfy the constraints. It
        names the constraint. Where the start is traced, the state becomes NaN instead,
        and the result `nonfinite_state`.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (34), (40), (52)-(54).
    """

    mass_matrix: Callable
    effort: Callable
    constraints: Callable | None = None
    formulation: AbstractFormulation = eqx.field(default_factory=IndexOne)
    velocity_to_qdot: Callable | None = None
    bias: Callable | None = None

    def __call__(self, t, x, args=None):
        q, v = x
        self = in_dtype(self, q.dtype)
        accelerations, _ = self.solve(t, q, v, args, jnp.zeros((v.shape[0], 0)))
        return self.qdot(q, v), accelerations[:, 0]

    def multipliers(self, t, x, args=None) -> Float[Array, " m"]:
        r"""The Lagrange multipliers $\lambda$: the constraint forces are $-\Phi_q^\top
        \lambda$.

        Of shape `(m,)`, in units of force over those of $\Phi_q$, and differentiable.
        In the penalty formulation, the estimates $\lambda^*$. At an event they jump, as
        a function of the state, and so do their sensitivities: what is right after it
        follows from the state after it, in the mode after it.

        ??? cite "Reference"

            Corner, Sandu, Sandu, (34), (40d). As printed, (61) and (62) add the
            sensitivity before the event; but the multipliers are a function of the
            state, and what is before the event does not enter.
        """
        q, v = x
        self = in_dtype(self, q.dtype)
        _, multipliers = self.solve(t, q, v, args, jnp.zeros((v.shape[0], 0)))
        return multipliers[:, 0]

    def residuals(self, t, x, args=None) -> tuple[Array, Array]:
        r"""How far the constraints are from being satisfied: $\Phi$ and $\dot\Phi =
        \Phi_q v + \Phi_t$, of shape `(m,)` each. (31a), (31b)"""
        q, v = x
        constraints = in_dtype(self, q.dtype).at(t, q, v, args)
        return constraints.residual, constraints.rate

    def plastic_impact(self, t, x, args=None) -> tuple[Array, Array]:
        r"""The state after the constraints begin to act, by an impulse.

        $$\begin{pmatrix} M & \Phi_q^\top \\ \Phi_q & 0 \end{pmatrix}
        \begin{pmatrix} v^+ \\ \delta\lambda \end{pmatrix}
        = \begin{pmatrix} M v^- \\ -\Phi_t \end{pmatrix}$$

        A reset, for the transition into the mode of this multibody system. It loses
        kinetic energy. Where it happens the position satisfies the constraints already.

        ??? cite "Reference"

            Corner, Sandu, Sandu, (54).
        """
        q, v = x
        self = in_dtype(self, q.dtype)
        constraints = self.at(t, q, v, args)
        _, change = self.push(q, args, constraints, constraints.rate)
        return q, v + change

    def impulse(self, t, x, args=None) -> Float[Array, " m"]:
        r"""The impulse $\delta\lambda$ of `plastic_impact`, a function of the state
        before it. The momentum changes by $-\Phi_q^\top \delta\lambda$.

        Of shape `(m,)`, in units of the multipliers times that of time.
        """
        q, v = x
        self = in_dtype(self, q.dtype)
        constraints = self.at(t, q, v, args)
        impulse, _ = self.push(q, args, constraints, constraints.rate)
        return impulse

    def complete_velocity(
        self, t, q, independent: Sequence[int], velocity: Float[Array, " f"], args=None
    ) -> Float[Array, " d"]:
        r"""The velocity with given independent entries: the others follow from the
        constraints.

        $$v_\mathrm{dep} = -\Phi_{q_\mathrm{dep}}^{-1}
        (\Phi_{q_\mathrm{dof}} v_\mathrm{dof} + \Phi_t)$$

        **Arguments:**

        - `t`, `q`: time and configuration.
        - `independent`: which entries of the velocity are given, `f = d - m` integers.
        - `velocity`: their values, of shape `(f,)`.

        **Returns:**

        The whole velocity, of shape `(d,)`. Not finite where the others are not
        determined by these.

        **Raises:**

        - `ValueError` if there are too many or too few.

        ??? cite "Reference"

            Corner, Sandu, Sandu, (48), (53).
        """
        self = in_dtype(self, q.dtype)
        d = jax.eval_shape(self.mass_matrix, q, args).shape[-1]
        v, dof = jnp.zeros((d,), q.dtype), [int(i) for i in independent]
        constraints = self.at(t, q, v, args)
        G, m = constraints.jacobian, constraints.jacobian.shape[0]
        if len(set(dof)) != d - m or not all(0 <= i < d for i in dof):
            raise ValueError(
                f"Argument `independent` must name {d - m} different entries of the "
                f"velocity, from 0 to {d - 1}, as it has {d} entries and {m} "
                f"constraints, but it is {list(independent)}."
            )
        if velocity.shape != (len(dof),):
            raise ValueError(
                f"Argument `velocity` must have shape ({len(dof)},), one entry for "
                f"each of `independent`, but it has shape {velocity.shape}."
            )
        dep = [i for i in range(d) if i not in dof]
        v = v.at[np.array(dof, int)].set(velocity.astype(q.dtype))
        rate = constraints.rate + dot(G, v)
        return v.at[np.array(dep, int)].set(jnp.linalg.solve(G[:, dep], -rate))

    #
    # The three functions of a hybrid system
    #

    def flow(self, t, x, mode, args):
        return self(t, x, args)

    def guards(self, t, x, mode, args):
        return jnp.zeros((0,), x[0].dtype)

    def jump(self, t, x, mode, event, args):
        return x, mode

    #
    # Names, and the start
    #

    @property
    def naming(self) -> Names:
        return Names()

    def start(self, t, x, mode, args):
        self.check_shapes(t, x, args)
        system = in_dtype(self, x[0].dtype)
        x, open_, moving, regular = close(system, t, x, args)
        if not is_traced((open_, moving, regular)):
            if not bool(regular):
                raise ValueError(SINGULAR)
            for j in np.flatnonzero(open_ | moving):
                part = "configuration" if open_[j] else "velocity"
                raise ValueError(
                    f"Argument `x0` violates constraint {j}: its {part} does not "
                    "satisfy it. Project it with `hj.mechanics.consistent_state`."
                )
        return x, 0 if mode is None else mode

    def check_shapes(self, t, x, args):
        """Raises a `ValueError` if a function or the state has a wrong shape."""
        if not (isinstance(x, tuple) and len(x) == 2) or not all(
            eqx.is_array(a) and a.ndim == 1 for a in x
        ):
            raise ValueError(
                "The state of a mechanical system must be a pair `(q, v)` of two "
                "vectors, configuration and velocity. It is "
                f"{eqx.tree_pformat(x)}."
            )
        q, v = x
        d = v.shape[0]
        if self.velocity_to_qdot is None:
            if q.shape != v.shape:
                raise ValueError(
                    f"Argument `x0` has {q.shape[0]} entries in its configuration and "
                    f"{d} in its velocity. If these are not the rates of those, say "
                    "what the rates are: argument `velocity_to_qdot`."
                )
        else:
            rate = lambda: self.velocity_to_qdot(q, v)  # pyright: ignore
            because = f"the configuration has shape {q.shape}"
            check_shapes({"velocity_to_qdot": (rate, [q.shape])}, because)
        check_shapes(
            {
                "mass_matrix": (lambda: self.mass_matrix(q, args), [(d, d), (d,)]),
                "effort": (lambda: self.effort(t, q, v, args), [(d,)]),
            },
            f"the velocity has {d} entries",
        )
        if self.bias is not None:
            bias = lambda: self.bias(q, v, args)  # pyright: ignore
            check_shapes({"bias": (bias, [(d,)])}, f"the velocity has {d} entries")
        if self.constraints is not None:
            got = jax.eval_shape(self.constraints, t, q, args)
            if getattr(got, "ndim", None) != 1:
                raise ValueError(
                    "Argument `constraints` must return a vector, one entry for each "
                    f"constraint, but it returned {got}."
                )

    #
    # Parts
    #

    def at(self, t, q, v, args) -> Constraints:
        """The constraints in a state."""
        if self.constraints is None:
            none = jnp.zeros((0,), q.dtype)
            return Constraints(none, none, jnp.zeros((0, v.shape[0]), q.dtype), none)
        t = jnp.asarray(t, q.dtype)
        phi = lambda t, q: self.constraints(t, q, args)  # pyright: ignore

        def along(fn):
            return lambda t, q: jax.jvp(fn, (t, q), (jnp.ones_like(t), self.qdot(q, v)))

        (residual, rate), (_, bias) = along(along(phi))(t, q)
        pull = lambda row: pull_back(self.velocity_to_qdot, q, v, row)
        jacobian = jax.vmap(pull)(jax.jacrev(phi, 1)(t, q))
        return in_dtype(Constraints(residual, rate, jacobian, -bias), q.dtype)

    def qdot(self, q, v):
        return qdot(self.velocity_to_qdot, q, v)

    def solve(self, t, q, v, args, forces: Float[Array, "d k"]):
        """The acceleration and the multipliers, and what each column of `forces` would
        add to them: of shapes `(d, 1 + k)` and `(m, 1 + k)`."""
        rate = self.velocity_to_qdot
        if self.bias is None:
            mass, gyroscopic = inertia(self.mass_matrix, q, v, args, rate)
        else:
            mass, gyroscopic = self.mass_matrix(q, args), self.bias(q, v, args)
        force, mass = self.effort(t, q, v, args) - gyroscopic, mass.astype(q.dtype)
        forces = jnp.concatenate([force[:, None], forces], axis=1).astype(q.dtype)
        if self.constraints is None:
            return accelerate(mass, forces), jnp.zeros((0, forces.shape[1]), q.dtype)
        return self.formulation(mass, self.at(t, q, v, args), forces)

    def push(self, q, args, constraints: Constraints, rows):
        """What impulses along the constraints have to be so that their `rows` vanish,
        and what they change: of shapes `(m,)` and `(d,)`."""
        G = constraints.jacobian
        response = accelerate(self.mass_matrix(q, args).astype(q.dtype), G.T)
        S = dot(G, response)
        impulse = least_solve(S, rows, diagonal(S))
        return impulse, -dot(response, impulse)


@eqx.filter_jit
def close(body: Multibody, t, x, args):
    """The state, with constraints satisfied to all digits; which of them its
    configuration and its velocity violate; whether the mass matrix is regular."""
    return deferred(_close, body, t, x, args)


def _close(body: Multibody, t, x, args):
    q, v = x
    regular = is_regular(body.mass_matrix(q, args))
    if body.constraints is None:
        none = jnp.zeros((0,), bool)
        return (q, v), none, none, regular
    tol = drift_tolerance(q.dtype)
    constraints = body.at(t, q, v, args)
    row = tol * jnp.max(jnp.abs(constraints.jacobian), axis=1)
    # Written so that NaN is a violation.
    open_ = ~(jnp.abs(constraints.residual) <= row * (1 + jnp.max(jnp.abs(q))))
    moving = ~(jnp.abs(constraints.rate) <= row * (1 + jnp.max(jnp.abs(v))))
    _, change = body.push(q, args, constraints, constraints.residual)
    x = body.plastic_impact(t, (q + body.qdot(q, change), v), args)
    sound = regular & ~open_.any() & ~moving.any()
    x = jtu.tree_map(lambda a: jnp.where(sound, a, jnp.nan), x)
    return x, open_, moving, regular


def drift_tolerance(dtype) -> float:
    """Of its size, how much a state may be off constraints that it is said to satisfy.
    A simulation with coarse steps ends so far off, and another one begins there."""
    return max(1e-3, float(jnp.finfo(dtype).eps) ** 0.375)
