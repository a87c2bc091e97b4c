from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._jax.gate import gate
from .._jax.tracing import is_traced, stop_gradient
from .._systems.parameter import in_dtype, parameter
from .._systems.stabilization import stabilization
from .._systems.system import AbstractSelfStartingSystem, UNWATCHED
from ._contacts.complementarity import (
    Active,
    contact_forces,
    find_active,
    force_size,
    posedness,
)
from ._contacts.contact_mode import ContactMode
from ._contacts.start_contacts import FAULTS, start_contacts
from ._dynamics.dot import dot
from ._dynamics.formulation import AbstractFormulation, IndexOne
from ._dynamics.multibody import Multibody
from ._dynamics.shapes import check_shapes


class MechanicalSystem(AbstractSelfStartingSystem):
    r"""A mechanical system with rigid contacts: impact, friction and liftoff.

    $$M(q) \ddot q + C(q, \dot q) \dot q = f(t, q, \dot q)
    + J_n^\top \lambda_n + J_t^\top \lambda_t - \Phi_q^\top \lambda,
    \qquad a_j(q) - s_j(t) \ge 0, \qquad \Phi(t, q) = 0,$$

    with $J_n = \mathrm D a$. Each contact is free, sticks, or slides one way or the
    other: see [`hybridjax.mechanics.ContactMode`][]. The system is planar in the sense
    that a contact has one tangential direction.

    - *Closed* contacts have $J_n \ddot q + \dot J_n \dot q = \ddot s$; sticking ones
        also $J_t \ddot q + \dot J_t \dot q = 0$, while sliding ones have the friction
        $\lambda_t = \mp \mu_k \lambda_n$. Accelerations and forces come from one linear
        system, of one size in all modes.
    - *Touchdown*, where a gap closes: an impulse reverses the normal velocity of that
        contact, $\dot a_j^+ = -e \dot a_j^-$ (relative to the surface), and keeps the
        other closed contacts closed, without pulling at any: one that it would have to
        pull at is released. With $e = 0$ the contact closes. Tangential impulses stop
        the contact if they can within $\pm\mu_s$ times the normal impulse, and else
        are $\mu_k$ times it, against the sliding. Contacts that touch down in the same
        instant do so one after the other, unless they are redundant.
    - *Liftoff*, where a normal force falls to zero.
    - *Slip*, where a tangential force leaves the friction cone $|\lambda_t| \le \mu_s
        \lambda_n$; *stick* or *reversal*, where sliding stops, by the force that would
        be needed to stick.

    After an impact, and after an event at which forces jump, all closed contacts are
    looked at again, together: those that would pull open, those outside of their
    friction cone slip.

    **Arguments:**

    - `mass_matrix`: callable `(q, args) -> M`, a symmetric positive definite matrix of
        shape `(d, d)`; or the vector of its diagonal, of shape `(d,)`, if the others
        are zero. The Coriolis terms $C \dot q$ are derived from it.
    - `effort`: callable `(t, q, v, args) -> f`, the applied and internal forces, of
        shape `(d,)`.
    - `gap`: callable `(q, args) -> a`, of shape `(n_contacts,)`.
    - `n_contacts`: number of contacts.
    - `tangents`: callable `(q, args) -> J_t`, of shape `(n_contacts, d)`: times $\dot
        q$ it is the tangential velocity of each contact. `None` means no friction.
    - `friction`: $\mu_k \ge 0$, one number or one for each contact.
    - `static_friction`: $\mu_s \ge \mu_k$, likewise. `None` means the same as
        `friction`.
    - `restitution`: $e$, from 0 to 1, one number or one for each contact; or a callable
        `(q, v, args) -> e` of the state before the impact.
    - `surface`: callable `(t, args) -> s`, of shape `(n_contacts,)`: how far the
        surfaces are displaced along the gaps (a paddle). `None` means that they are at
        rest.
    - `stabilization`: rate $\alpha$, in 1/time, at which errors of closed contacts
        decay: their second derivatives are not zero but $-2 \alpha \dot a - \alpha^2
        a$, as in Baumgarte (1972). These terms are zero for exact solutions.
    - `apex`: whether apexes are events: contacts are then `RISING` while their gap
        grows, and `FREE` while it shrinks.
    - `constraints`: callable `(t, q, args) -> Phi`, of shape `(m,)`: bilateral
        constraints $\Phi = 0$ that hold in all modes, and during impacts, beside those
        of the contacts. `None` means that there are none.
    - `formulation`: [`hybridjax.mechanics.IndexOne`][] or
        [`hybridjax.mechanics.Penalty`][]: what enforces them. `None` is the first, with
        `stabilization`.

    **State:** the pair `(q, v)` of configuration and velocity, of shape `(d,)` each.

    **Mode:** an integer array of shape `(n_contacts,)`, of the values of
    [`hybridjax.mechanics.ContactMode`][]. It may be left out in
    [`hybridjax.simulate`][]: contacts whose gap and normal velocity are zero (to 1e-6
    in float64 and 3e-3 in float32, times the size of `q`, or `v`, if that is more than
    1) are then closed, if their forces agree with that.

    **Guards:** with `n = n_contacts`, guard `j` belongs to the normal direction of
    contact `j`: touchdown (the gap), liftoff (the normal force), the end of `LIFTING`
    (the acceleration of the gap) or of `RISING` (its velocity). With friction, guards
    `n + j` and `2n + j` are those of its tangential direction: the two sides of the
    friction cone, and the tangential velocity forward and backward; and guard `3n + j`
    is about to make the contact forces of a sliding contact ambiguous.

    **Raises:**

    - `ValueError` for arguments of wrong shape; and at the start, if a contact is below
      ground, a closed contact is open or moves, would have to pull, or would slip; or
      if the mass matrix is not positive definite. It names the contact. Where the start
      is traced, [`hybridjax.SimulationError`][], or the result `nonfinite_state` with
      `throw=False`, and the mode says which contact is `INCONSISTENT`.

    !!! warning

        With friction and $0 < e$, Newton's law of restitution can add energy in an
        oblique impact (Kane's paradox); with $e = 0$ it does not.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Section V: (63), (68), (69). Without
        friction, and $e$ of the state: Pace, Burden, *Decoupled limbs yield
        differentiable trajectory outcomes through intermittent contact in locomotion
        and manipulation*, (1)-(4).
    """

    mass_matrix: Callable
    effort: Callable
    gap: Callable
    tangents: Callable | None
    restitution: Callable
    surface: Callable | None
    friction: Float[Array, " n_contacts"]
    static_friction: Float[Array, " n_contacts"]
    stabilization: Float[Array, ""]
    constraints: Callable | None
    formulation: AbstractFormulation
    n_contacts: int = eqx.field(static=True)
    apex: bool = eqx.field(static=True)

    def __init__(
        self,
        mass_matrix: Callable,
        effort: Callable,
        gap: Callable,
        n_contacts: int,
        *,
        tangents: Callable | None = None,
        friction: ArrayLike = 0.0,
        static_friction: ArrayLike | None = None,
        restitution: ArrayLike | Callable = 0.0,
        surface: Callable | None = None,
        stabilization: ArrayLike = 5.0,
        apex: bool = False,
        constraints: Callable | None = None,
        formulation: AbstractFormulation | None = None,
    ):
        if static_friction is None:
            static_friction = friction
        self.mass_matrix = mass_matrix
        self.effort = effort
        self.gap = gap
        self.tangents = tangents
        if not callable(restitution):
            restitution = _Constant(per_contact("restitution", restitution, n_contacts))
        self.restitution = restitution
        self.surface = surface
        self.friction = per_contact("friction", friction, n_contacts)
        self.static_friction = per_contact(
            "static_friction", static_friction, n_contacts
        )
        self.stabilization = parameter(stabilization)
        self.n_contacts = n_contacts
        self.apex = apex
        self.constraints = constraints
        self.formulation = (
            IndexOne(stabilization) if formulation is None else formulation
        )

    @classmethod
    def from_lagrangian(
        cls,
        lagrangian: Callable,
        gap: Callable,
        n_contacts: int,
        *,
        effort: Callable | None = None,
        **kwargs: Any,
    ) -> "MechanicalSystem":
        r"""The system with the equations of motion of a Lagrangian.

        $$\frac{\mathrm d}{\mathrm dt} \frac{\partial L}{\partial \dot q}
        - \frac{\partial L}{\partial q} = f
        + J_n^\top \lambda_n + J_t^\top \lambda_t$$

        **Arguments:**

        - `lagrangian`: callable `(q, v, args) -> L`, a scalar, at most quadratic in
            `v`: kinetic minus potential energy. Terms that are linear in `v` give
            gyroscopic forces.
        - `gap`, `n_contacts`: as above.
        - `effort`: callable `(t, q, v, args) -> f`, forces that $L$ does not have, or
            `None`.
        - `kwargs`: any other argument of [`hybridjax.mechanics.MechanicalSystem`][].
        """
        terms = _Lagrangian(lagrangian, effort)
        return cls(terms.mass_matrix, terms.effort, gap, n_contacts, **kwargs)

    #
    # The three functions of a hybrid system
    #

    def flow(self, t, x, mode, args):
        q, v = x
        self = in_dtype(self, q.dtype)
        p = self.point(t, q, v, args)
        c = p.c + self._stabilized(p)
        forces = contact_forces(p.W, c, self.active(mode, q.dtype), self.friction)
        acceleration = p.unconstrained + dot(p.response, forces)
        return v, jnp.where(jnp.any(mode < 0), jnp.nan, acceleration)

    def guards(self, t, x, mode, args):
        n = self.n_contacts
        q, v = x
        self = in_dtype(self, q.dtype)
        p = self.point(t, q, v, args)
        active = self.active(mode, q.dtype)
        forces, moves = self.forces(p, active)
        # Where exactly a departure ends does not matter, as nothing changes there. So
        # it is not ended by rounding, where it begins.
        small = _little(p)

        normal = jnp.where(mode == ContactMode.FREE, p.gap, forces[:n])
        normal = jnp.where(mode == ContactMode.LIFTING, moves[:n] + small, normal)
        normal = jnp.where(mode == ContactMode.RISING, p.velocity[:n], normal)
        turns = jnp.where(
            self.apex & (mode == ContactMode.FREE), -p.velocity[:n], UNWATCHED
        )
        if self.tangents is None:
            return jnp.concatenate([normal, turns]) if self.apex else normal

        watched = active.closed & ~self.slick
        # A contact without a tangential force lifts off, where its cone shrinks to
        # nothing; it does not slip in the same instant.
        rounding = jnp.finfo(q.dtype).eps ** 0.75 * force_size(p.W, p.size, forces)

        def tangent(sign, slides, slipping):
            cone = self.static_friction * forces[:n] - sign * forces[n:]
            cone = cone + stop_gradient(rounding)
            g = jnp.where(active.stick, cone, UNWATCHED)
            g = jnp.where(mode == slides, sign * p.velocity[n:], g)
            g = jnp.where(mode == slipping, sign * moves[n:] + small, g)
            return jnp.where(watched, g, UNWATCHED)

        forward = tangent(1, ContactMode.FORWARD, ContactMode.SLIPPING_FORWARD)
        backward = tangent(-1, ContactMode.BACKWARD, ContactMode.SLIPPING_BACKWARD)
        solvable = posedness(p.W, active, self.friction)
        solvable = jnp.where(watched & ~active.stick, solvable, UNWATCHED)
        forward = jnp.where(active.closed, forward, turns)
        return jnp.concatenate([normal, forward, backward, solvable])

    def jump(self, t, x, mode, event, args):
        n = self.n_contacts
        q, v = x
        self = in_dtype(self, q.dtype)
        here = jnp.arange(n) == event % n
        kind, before = event // n, mode[event % n]
        tangential = (kind == 1) | (kind == 2)
        touches = (kind == 0) & (before == ContactMode.FREE)
        lifts = (kind == 0) & _is_closed(before)
        slips = tangential & (before == ContactMode.STICKING)
        slides = (before == ContactMode.FORWARD) | (before == ContactMode.BACKWARD)
        stops = tangential & slides
        fails = (kind == 3) & _is_closed(before)

        q, v, impact, unsolved = self._impact(t, q, v, mode, here & touches, args)

        active = self.active(mode, q.dtype)
        # The force on a contact has left its cone on the side to which it pushes, and
        # the contact slides to the other.
        away = jnp.where(kind == 1, -1, 1).astype(q.dtype)
        guess = Active(
            closed=active.closed & ~(here & lifts),
            stick=active.stick & ~(here & slips),
            direction=jnp.where(here & slips, away, active.direction),
        )
        guess = jtu.tree_map(lambda a, b: jnp.where(touches, a, b), impact, guess)
        departing = mode >= ContactMode.SLIPPING_FORWARD
        resting = guess.stick | (departing & ~touches) | (here & stops)
        settled, lost = self.settle(
            t, q, v, mode, guess, resting, here & slips, touches, args
        )
        settled = jnp.where(here & lifts, int(ContactMode.LIFTING), settled)

        # The end of a departure, or an apex, changes only what is watched.
        up = ContactMode.RISING if self.apex else ContactMode.FREE
        successor = jnp.asarray(_successors(int(up)), mode.dtype)[before]
        watch_on = jnp.where(here, successor, mode)
        mode = jnp.where(touches | lifts | slips | stops, settled, watch_on)
        lost = (touches & (unsolved | lost)) | ((lifts | slips | stops) & lost)
        lost = lost | (here & fails)
        return (q, v), jnp.where(lost, int(ContactMode.UNSOLVABLE), mode)

    def contact_forces(self, t, x, mode, args=None) -> tuple[Array, Array]:
        r"""The contact forces: normal and tangential, each of shape `(n_contacts,)`.

        In units of force, and differentiable. $\lambda_n \ge 0$ pushes the gap open,
        $\lambda_t$ is along the tangent; both are zero where a contact is free. (The
        impulses at an impact come on top of them.)
        """
        q, v = x
        self = in_dtype(self, q.dtype)
        forces, _ = self.forces(self.point(t, q, v, args), self.active(mode, q.dtype))
        n = self.n_contacts
        tangential = forces[n:] if self.tangents is not None else jnp.zeros((n,))
        return forces[:n], tangential.astype(q.dtype)

    def multipliers(self, t, x, mode, args=None) -> Float[Array, " m"]:
        r"""The Lagrange multipliers $\lambda$ of the constraints, whose forces are
        $-\Phi_q^\top \lambda$: as those of [`hybridjax.mechanics.Multibody`][].
        """
        q, v = x
        self = in_dtype(self, q.dtype)
        p = self.point(t, q, v, args)
        forces, _ = self.forces(p, self.active(mode, q.dtype))
        _, multipliers = self.body.solve(t, q, v, args, p.jacobian.T)
        return (multipliers[:, 0] + dot(multipliers[:, 1:], forces)).astype(q.dtype)

    #
    # Names, and the start
    #

    def mode_name(self, mode) -> str:
        names = [ContactMode(int(m)).name for m in np.asarray(mode)]
        text = f"[{', '.join(names)}]"
        for j, name in enumerate(names):
            if name in _EXPLANATIONS:
                text += f" (contact {j}: {_EXPLANATIONS[name]})"
        return text

    def guard_name(self, guard: int) -> str:
        kinds = (
            "touchdown, liftoff or apex",
            "slip backward or stop",
            "slip forward or stop",
            "loss of a unique contact force",
        )
        kind, j = divmod(guard, self.n_contacts)
        return f"guard {guard} (contact {j}: {kinds[kind]})"

    def start(self, t, x, mode, args):
        x, _ = self.body.start(t, x, mode, args)
        self._check_shapes(t, x, args)
        if mode is not None:
            mode = jnp.asarray(mode)
            if mode.shape != (self.n_contacts,) or not jnp.issubdtype(
                mode.dtype, jnp.integer
            ):
                raise ValueError(
                    "The mode of a `MechanicalSystem` must be a vector of "
                    f"{self.n_contacts} integers, one `ContactMode` for each contact, "
                    f"but it has shape {mode.shape} and dtype {mode.dtype}."
                )
        system = in_dtype(self, x[0].dtype)
        x, mode, faults = start_contacts(system, t, x, mode, args)
        if not is_traced((mode, faults)):
            for j, fault in enumerate(np.asarray(faults)):
                if fault > 0:
                    raise ValueError(FAULTS[int(fault) - 1].format(j))
        mode = jnp.where(faults > 0, int(ContactMode.INCONSISTENT), mode)
        mode = jnp.where(faults == 1, int(ContactMode.UNSOLVABLE), mode)
        return x, mode

    def _check_shapes(self, t, x, args):
        q, v = x
        d, n = q.shape[0], self.n_contacts
        checks = {
            "gap": (lambda: self.gap(q, args), [(n,)]),
            "restitution": (lambda: self.restitution(q, v, args), [(n,), ()]),
        }
        if self.tangents is not None:
            checks["tangents"] = (lambda: self.tangents(q, args), [(n, d)])  # pyright: ignore
        if self.surface is not None:
            checks["surface"] = (lambda: self.surface(t, args), [(n,)])  # pyright: ignore
        because = f"there are {n} contacts and the configuration has {d} entries"
        check_shapes(checks, because)

    #
    # Parts
    #

    @property
    def body(self) -> Multibody:
        """The same without contacts."""
        return Multibody(
            self.mass_matrix, self.effort, self.constraints, self.formulation
        )

    @property
    def slick(self) -> Bool[Array, " n_contacts"]:
        """Contacts without friction: their sliding has no direction."""
        if self.tangents is None:
            return jnp.ones((self.n_contacts,), bool)
        return (self.friction == 0) & (self.static_friction == 0)

    def point(self, t, q, v, args) -> "_Point":
        """What the contacts look like in a state, whatever their mode."""

        def rows(q):
            a, pull = jax.vjp(lambda q: self.gap(q, args), q)
            (normals,) = jax.vmap(pull)(np.eye(a.shape[0], dtype=a.dtype))
            if self.tangents is None:
                return normals, a
            return jnp.concatenate([normals, self.tangents(q, args)]), a

        jacobian, turning, a = jax.jvp(rows, (q,), (v,), has_aux=True)
        rate, bias = dot(jacobian, v), dot(turning, v)
        if self.surface is not None:
            n, one = self.n_contacts, jnp.ones_like(t)
            surface = lambda t: self.surface(t, args)  # pyright: ignore
            along = lambda t: jax.jvp(surface, (t,), (one,))
            (s, s_rate), (_, s_bias) = jax.jvp(along, (t,), (one,))
            a = a - s
            rate, bias = rate.at[:n].add(-s_rate), bias.at[:n].add(-s_bias)
        solved, _ = self.body.solve(t, q, v, args, jacobian.T)
        unconstrained, response = solved[:, 0], solved[:, 1:]
        spread = lambda a: jnp.max(dot(jnp.abs(jacobian), jnp.abs(a)))
        point = _Point(
            gap=a,
            velocity=rate,
            jacobian=jacobian,
            unconstrained=unconstrained,
            response=response,
            W=dot(jacobian, response),
            c=dot(jacobian, unconstrained) + bias,
            length=jnp.max(jnp.abs(a)) + spread(q),
            speed=jnp.max(jnp.abs(rate)) + spread(v),
            size=jnp.max(jnp.abs(bias)) + spread(unconstrained),
        )
        return in_dtype(point, q.dtype)

    def active(self, mode, dtype) -> Active:
        back = (mode == ContactMode.BACKWARD) | (mode == ContactMode.SLIPPING_BACKWARD)
        direction = jnp.where(back, -1, 1).astype(dtype)
        return Active(_is_closed(mode), mode == ContactMode.STICKING, direction)

    def _stabilized(self, p: "_Point"):
        n, rate = self.n_contacts, self.stabilization
        normal = 2 * rate * p.velocity[:n] + rate**2 * p.gap
        return stabilization(jnp.concatenate([normal, rate * p.velocity[n:]]))

    def forces(self, p: "_Point", active: Active):
        """The forces, and the accelerations of all gaps and slips."""
        forces = contact_forces(p.W, p.c + self._stabilized(p), active, self.friction)
        return forces, p.c + dot(p.W, forces)

    def _impact(self, t, q, v, mode, hit, args):
        """The state after an impact of the contacts `hit`, which contacts are closed
        after it, and those for which there is no solution. (69)"""
        n = self.n_contacts
        p = self.point(t, q, v, args)
        approach = p.velocity[:n]
        others = hit.any() & self._together(p, mode, hit)
        hit = hit | others
        e = self.restitution(*gate((q, v, args), hit.any())).astype(q.dtype)
        c = jnp.concatenate([jnp.where(hit, 1 + e, 1) * approach, p.velocity[n:]])
        closed = _is_closed(mode) | hit
        can_stick = closed & ~self.slick
        guess = Active(closed, can_stick, _sign(p.velocity[n:], closed))
        active, unsolved = find_active(
            p.W,
            c,
            p.speed,
            guess,
            can_stick,
            ~closed,
            self.friction,
            self.static_friction,
            exact=0.45,  # Velocities have the errors of the solver.
        )
        impulses = contact_forces(p.W, c, active, self.friction)
        v = jnp.where(hit.any(), v + dot(p.response, impulses), v)
        bounces = hit & (e * -approach > 0)
        active = eqx.tree_at(lambda a: a.closed, active, active.closed & ~bounces)
        # Those that touch down with it are only near their surfaces, or are there now,
        # but not in a nearby motion.
        q = jnp.where(others.any(), q + self.closing(p, active), q)
        return q, v, active, unsolved

    def closing(self, p: "_Point", active: Active) -> Float[Array, " d"]:
        """What is to be added to `q` to close the gaps of closed contacts."""
        slick = Active(active.closed, jnp.zeros_like(active.stick), active.direction)
        return self._cancelling(p, p.velocity.at[: self.n_contacts].set(p.gap), slick)

    def stopping(self, p: "_Point", active: Active) -> Float[Array, " d"]:
        """What is to be added to `v` to stop closed and sticking contacts."""
        return self._cancelling(p, p.velocity, active)

    def _cancelling(self, p: "_Point", rows, active: Active):
        push = contact_forces(p.W, rows, active, jnp.zeros_like(self.friction))
        return dot(p.response, push)

    def _together(self, p: "_Point", mode, hit) -> Bool[Array, " n_contacts"]:
        """Contacts that touch down in the same instant as `hit`, if they are redundant.

        Others touch down one after the other, in an order on which the outcome may
        depend. The four feet of a rigid table would take turns forever.
        """
        n = self.n_contacts
        near = jnp.finfo(p.c.dtype).eps ** 0.75 * (1 + p.length)
        lands = (mode == ContactMode.FREE) & (jnp.abs(p.gap) <= near)
        lands = (lands & (p.velocity[:n] < 0)) | hit
        touches = lands | _is_closed(mode)
        scale = jnp.sqrt(jnp.diagonal(p.W)[:n])
        cosines = p.W[:n, :n] / jnp.outer(scale, scale)
        both = jnp.outer(touches, touches)
        cosines = stop_gradient(jnp.where(both, cosines, jnp.eye(n, dtype=p.c.dtype)))
        sines = jnp.diagonal(jnp.linalg.cholesky(cosines))
        independent = jnp.min(sines) > jnp.finfo(p.c.dtype).eps ** 0.25  # or NaN
        return lands & ~independent

    def settle(self, t, q, v, mode, guess: Active, resting, known, impact, args):
        """The modes of contacts that are closed in `guess`, by their forces, and those
        for which there is no solution."""
        # Nothing of it is differentiated: the modes are discrete.
        system, t, q, v, args = stop_gradient((self, t, q, v, args))
        n = self.n_contacts
        p = system.point(t, q, v, args)
        resting = (resting | self._still(p)) & guess.closed & ~self.slick & ~known
        departing = (mode >= ContactMode.SLIPPING_FORWARD) & ~impact
        stick = (guess.stick | (resting & ~departing)) & ~self.slick & ~known
        guess = Active(guess.closed, stick, guess.direction)
        active, lost = find_active(
            p.W,
            p.c,
            p.size,
            guess,
            resting,
            known,
            self.friction,
            self.static_friction,
            exact=0.6,
        )
        _, moves = self.forces(p, active)
        forward, backward = (
            jnp.where(resting | known, int(slipping), int(sliding))
            for slipping, sliding in (
                (ContactMode.SLIPPING_FORWARD, ContactMode.FORWARD),
                (ContactMode.SLIPPING_BACKWARD, ContactMode.BACKWARD),
            )
        )
        slides = jnp.where(active.direction > 0, forward, backward)
        slides = jnp.where(self.slick, int(ContactMode.FORWARD), slides)
        closed = jnp.where(active.stick, int(ContactMode.STICKING), slides)
        # Free ones: after an impact each has a velocity; otherwise nothing has changed,
        # but a departure may have ended with a jump of the forces.
        up = ContactMode.RISING if self.apex else ContactMode.FREE
        rising = jnp.where(p.velocity[:n] > 0, int(up), int(ContactMode.FREE))
        stays = (mode != ContactMode.LIFTING) | (moves[:n] + _little(p) > 0)
        free = jnp.where(impact | ~stays, rising, mode)
        released = guess.closed & ~active.closed
        free = jnp.where(released, int(ContactMode.LIFTING), free)
        return jnp.where(active.closed, closed, free).astype(mode.dtype), lost

    def _still(self, p: "_Point"):
        """Contacts whose tangential velocity is zero up to errors: those of a rigid
        body stop together."""
        n = self.n_contacts
        if self.tangents is None:
            return jnp.ones((n,), bool)
        stopping_time = (
            10 * jnp.sqrt(jnp.finfo(p.c.dtype).eps) / (1 + self.stabilization)
        )
        return jnp.abs(p.velocity[n:]) <= stopping_time * p.size


class _Point(eqx.Module):
    """Kinematics and dynamics of all contacts: normal rows, then tangential ones."""

    gap: Float[Array, " n"]
    velocity: Float[Array, " rows"]
    jacobian: Float[Array, "rows d"]
    unconstrained: Float[Array, " d"]  # the acceleration without contact
    response: Float[Array, "d rows"]  # of it to contact forces: M^-1 J^T
    W: Float[Array, "rows rows"]
    c: Float[Array, " rows"]  # accelerations of gaps and slips without contact
    # Of what gaps, velocities and accelerations are the sums of: in relation to it,
    # what cancels is rounding.
    length: Float[Array, ""]
    speed: Float[Array, ""]
    size: Float[Array, ""]


class _Constant(eqx.Module):
    value: Float[Array, " n"]

    def __call__(self, q, v, args):
        return self.value


class _Lagrangian(eqx.Module):
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


def per_contact(name: str, value, n: int) -> Float[Array, " n"]:
    array = parameter(value)
    if array.shape not in ((), (n,)):
        raise ValueError(
            f"Argument `{name}` must be a number or have one entry for each of the {n} "
            f"contacts, but it has shape {array.shape}."
        )
    return jnp.broadcast_to(array, (n,))


def _little(p: _Point):
    """An acceleration that is zero, up to errors."""
    return jnp.finfo(p.c.dtype).eps ** 0.6 * (jnp.finfo(p.c.dtype).tiny + p.size)


def _is_closed(mode):
    slides = (mode == ContactMode.FORWARD) | (mode == ContactMode.BACKWARD)
    slides = slides | (mode >= ContactMode.SLIPPING_FORWARD)
    return (mode == ContactMode.STICKING) | slides


def _sign(velocity, like):
    if velocity.shape[0] == 0:
        return jnp.ones(like.shape, velocity.dtype)
    return jnp.where(velocity < 0, -1, 1).astype(velocity.dtype)


def _successors(up: int) -> list[int]:
    """By mode: what follows when a guard fires that changes only what is watched."""
    successors = list(range(8))
    successors[ContactMode.FREE] = int(ContactMode.RISING)
    successors[ContactMode.LIFTING] = up
    successors[ContactMode.RISING] = int(ContactMode.FREE)
    successors[ContactMode.SLIPPING_FORWARD] = int(ContactMode.FORWARD)
    successors[ContactMode.SLIPPING_BACKWARD] = int(ContactMode.BACKWARD)
    return successors


_EXPLANATIONS = {
    "UNSOLVABLE": "no unique contact force or impulse agrees with its friction, as in "
    "Painlevé's paradox. Less friction, or another configuration, has one",
    "INCONSISTENT": "the start is below ground, or does not agree with the contact "
    "mode. Pass positive gaps for free contacts, and leave out `mode0`, or make the "
    "gaps and velocities of closed contacts zero",
}
