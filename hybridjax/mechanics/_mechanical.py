from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._jax.division import divided
from .._jax.tracing import is_traced
from .._systems.names import Names
from .._systems.parameter import parameter
from .._systems.rest import as_rest_speed, RestSpeed
from .._systems.system import AbstractSelfStartingSystem, UNWATCHED
from ._contacts.contact_mode import ContactMode
from ._contacts.dry_friction import with_dry
from ._contacts.forces import active_in, forces_of
from ._contacts.guards import watched_values
from ._contacts.kinematics import point
from ._contacts.some_contacts import SomeContacts
from ._contacts.start_contacts import FAULTS, start_contacts
from ._contacts.tangential import in_space
from ._contacts.transitions import transition
from ._dynamics.dot import dot
from ._dynamics.formulation import AbstractFormulation, IndexOne
from ._dynamics.lagrangian import LagrangianTerms
from ._dynamics.multibody import Multibody
from ._dynamics.shapes import check_shapes


class MechanicalSystem(AbstractSelfStartingSystem):
    r"""A mechanical system with rigid contacts: impact, friction and liftoff.

    $$M(q) \ddot q + C(q, \dot q) \dot q = f(t, q, \dot q)
    + J_n^\top \lambda_n + J_t^\top \lambda_t - \Phi_q^\top \lambda,
    \qquad a_j(q) - s_j(t) \ge 0, \qquad \Phi(t, q) = 0,$$

    with $J_n = \mathrm D a$ (and $v$ in place of $\dot q$, where `velocity_to_qdot`
    says $\dot q = N(q) v$; then $J_n = \mathrm D a\, N$). Each contact is free, sticks,
    or slides: see `hj.mechanics.ContactMode`. Contacts have one tangential direction,
    as in a plane, or two, as in space, with a cone of friction and a slip that turns.

    - *Closed* contacts have $J_n \ddot q + \dot J_n \dot q = \ddot s$; sticking ones
        also $J_t \ddot q + \dot J_t \dot q = 0$, while sliding ones have the friction
        $\lambda_t = \mp \mu_k \lambda_n$. Accelerations and forces come from one linear
        system, of one size in all modes. In space, $\lambda_t = -\mu_k \lambda_n s /
        |s|$ with the slip $s = J_t \dot q$.
    - *Touchdown*, where a gap closes: an impulse reverses the normal velocity of that
        contact, $\dot a_j^+ = -e \dot a_j^-$ (relative to the surface), and keeps the
        other closed contacts closed, without pulling at any: one that it would have to
        pull at is released. With $e = 0$, or below `rest_speed`, the contact closes.
        (If its approach is below that too, nothing is released.) Tangential impulses
        stop the contact if they can within $\pm\mu_s$ times the normal impulse, and
        else are $\mu_k$ times it, against the sliding. Contacts that touch down in the
        same instant do so one after the other, unless they are redundant.
    - *Liftoff*, where a normal force falls to zero.
    - *Slip*, where a tangential force leaves the friction cone $|\lambda_t| \le \mu_s
        \lambda_n$; *stick* or *reversal*, where sliding stops, by the force that would
        be needed to stick.

    After an impact, and after an event at which forces jump, all closed contacts are
    looked at again, together: those that would pull open, those outside of their
    friction cone slip. One whose slip no forces agree with (Painlevé's paradox) is
    jammed: an impulse follows in the same instant.

    **Arguments:**

    - `mass_matrix`: callable `(q, args) -> M`, a symmetric positive definite matrix of
        shape `(d, d)`; or the vector of its diagonal, of shape `(d,)`, if the others
        are zero. The Coriolis terms $C \dot q$ are derived from it.
    - `effort`: callable `(t, q, v, args) -> f`, the applied and internal forces, of
        shape `(d,)`.
    - `gap`: callable `(q, args) -> a`, of shape `(n_contacts,)`. `None`: there are
        none, but `dry_friction`.
    - `n_contacts`: number of contacts with a gap.
    - `normals`: callable `(q, args) -> J_n`, of shape `(n_contacts, d)`: times $\dot q$
        it is the velocity of each gap. If it is known, as that of a robot is, the gaps
        need not be differentiated, by a reverse pass for each contact. `None`: they
        are.
    - `tangents`: callable `(q, args) -> J_t`, of shape `(n_contacts, d)`: times $\dot
        q$ it is the tangential velocity of each contact. Or of shape `(n_contacts, 2,
        d)`, for two directions that are normal to each other; if one row is longer than
        the other, the friction cone is elliptic, wider along it by as much. `None`
        means no friction. There is no torsional and no rolling friction.
    - `friction`: $\mu_k \ge 0$, one number or one for each contact.
    - `static_friction`: $\mu_s \ge \mu_k$, likewise. `None` means the same as
        `friction`. (If it is more, several outcomes of an impact may agree with both:
        one of them is taken.) With `jnp.inf` a contact that sticks slips only where it
        would have to be held down, and would sink without its tangential force; or at a
        dead centre of a mechanism, where no force can hold it.
    - `dry_friction`: $F$, of shape `(d,)`: forces that oppose the velocities, as in the
        bearings of joints, $-F_i \operatorname{sign}(v_i)$, and hold what is at rest
        with at most as much. In units of the effort (N, or N m). What has some is a
        contact, too, after the others, in the order of `v`: it sticks or slides, its
        gap is zero, and its normal force is $F_i$. It has no impulse at an impact.
        Entries that are known to be zero here have none. `None`: there is none.
    - `restitution`: $e$, from 0 to 1, one number or one for each contact; or a callable
        `(q, v, args) -> e` of the state before the impact.
    - `rest_speed`: a contact that would leave its surface no faster than this, in
        units of the gap per unit of time, stays there, if $e < 1$ and what is applied
        would press it back. So impacts that accumulate come to an end. And a closed one
        that is opened so slowly, by the impact of another, stays closed: without an
        impulse of its friction, or sticking, if it stuck. `None`: where it would not
        rise by more than a hundredth of the absolute tolerance of the step size
        controller, or by a few rounding errors of its place if that is more. With 0 a
        simulation in which they accumulate ends with `zeno`. In space, a slide no
        faster than this is at its end, too (by default: a tenth of that speed), and one
        that begins so slowly has the direction of what drives it.
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
    - `formulation`: `hj.mechanics.IndexOne` or
        `hj.mechanics.Penalty`: what enforces them. `None` is the first, with
        `stabilization`.
    - `velocity_to_qdot`: callable `(q, v) -> dq/dt`, linear in `v`: $N(q) v$, with $N$
        of full rank. `None` is the identity. Mass matrix, effort, `normals` and
        `tangents` are those of `v`. For joints with quaternions:
        `hj.mechanics.ball_joint`, `hj.mechanics.free_joint`.
    - `bias`: callable `(q, v, args) -> C v`, of shape `(d,)`: the Coriolis terms, if
        they are known, as those of a robot are by recursion from link to link (its
        weight may be among them, as in MuJoCo's `qfrc_bias`). The mass matrix is then
        not differentiated for them. `None`: they are derived from it.
    - `most_closed`: how many contacts may be closed, or lifting off, at once, beside
        those of `dry_friction`, which always are. Of some
        dozens of contact points, as a robot has, few are as a rule, and it is worth
        saying: only so many are in the equations that are solved. Nothing else changes;
        a simulation in which there are more fails, and says so. `None`: all of them.

    **State:** the pair `(q, v)` of configuration and velocity, of shape `(d,)` each; or
    of shapes `(n,)` and `(d,)`, with a `velocity_to_qdot`.

    **Mode:** an integer array of shape `(n_contacts,)`, of the values of
    `hj.mechanics.ContactMode`. It may be left out in
    `hj.simulate`: contacts whose gap and normal velocity are zero (to 1e-6
    in float64 and 3e-3 in float32, times the size of `q`, or `v`, if that is more than
    1) are then closed, if their forces agree with that. One that a given mode says is
    closed may be off by 1e-3 in float64 too, as where another simulation ended. What is
    closed is then moved, and stopped, so that gap and velocity are zero, to first order
    in how far it was off.

    **Guards:** with `n = n_contacts`, guard `j` belongs to the normal direction of
    contact `j`: touchdown (the gap), liftoff (the normal force), the end of `LIFTING`
    (the acceleration of the gap) or of `RISING` (its velocity). With friction, guards
    `n + j` and `2n + j` are those of its tangential direction: the two sides of the
    friction cone, and the tangential velocity forward and backward; and guard `3n + j`
    is about to make the contact forces of a sliding contact ambiguous. In space guard
    `n + j` is the friction cone, or the end of sliding, and guard `2n + j` the end of
    `SLIPPING`.

    **Raises:**

    - `ValueError` for arguments of wrong shape; and at the start, if a contact is below
      ground, or a closed contact is open or moves, or more than `most_closed` are
      closed; or if the mass matrix is not positive definite. It names the contact.
      Where the start is traced, `hj.SimulationError`, or the result `nonfinite_state`
      with `throw=False`, and the mode says which contact is `INCONSISTENT`, or
      `CROWDED`. (A closed contact that would have to pull, or cannot stick, is open or
      slips from the start on: efforts may jump where one simulation ends and the next
      one begins.)

    !!! note "The error of coming to rest"

        Bounces of a speed $v$ of at most `rest_speed` are left out. With $a$ the
        acceleration that presses the contact to its surface, the time of its closing is
        $2 v / (a (1 - e))$ too early, and its gap was up to $v^2 / (2 a)$. Impulses are
        those of the contact force that takes their place, so that what follows is right
        up to $v^2 / a$ in positions. By default that is 2e-10, and $v$ with $a$ = 9.81
        is 4.4e-5. From a speed $v_1$ it takes
        about $\log(v_1 / v) / \log(1 / e)$ impacts: if $e$ is near 1, raise
        `max_events`, or `rest_speed`.

    !!! note "The end of a slide in space"

        A slip of two components is stopped when its speed is so small that what is left
        of the slide is $10^{-4}$ of the absolute tolerance (or some rounding errors).
        The event is early by the time that this takes, a few microseconds by default;
        states and their derivatives are right up to the square of the speed: see
        docs/concepts/friction.md.

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
    normals: Callable | None
    tangents: Callable | None
    restitution: Callable
    surface: Callable | None
    rest_speed: RestSpeed
    friction: Float[Array, " n_contacts"]
    static_friction: Float[Array, " n_contacts"]
    dry_friction: Float[Array, " d"] | None
    stabilization: Float[Array, ""]
    constraints: Callable | None
    formulation: AbstractFormulation
    velocity_to_qdot: Callable | None
    bias: Callable | None
    n_contacts: int = eqx.field(static=True)
    apex: bool = eqx.field(static=True)
    most_closed: int | None = eqx.field(static=True)
    dry: tuple[int, ...] = eqx.field(static=True)  # velocities with dry friction

    def __init__(
        self,
        mass_matrix: Callable,
        effort: Callable,
        gap: Callable | None = None,
        n_contacts: int = 0,
        *,
        normals: Callable | None = None,
        tangents: Callable | None = None,
        friction: ArrayLike = 0.0,
        static_friction: ArrayLike | None = None,
        dry_friction: ArrayLike | None = None,
        restitution: ArrayLike | Callable = 0.0,
        rest_speed: ArrayLike | None = None,
        surface: Callable | None = None,
        stabilization: ArrayLike = 5.0,
        apex: bool = False,
        constraints: Callable | None = None,
        formulation: AbstractFormulation | None = None,
        velocity_to_qdot: Callable | None = None,
        bias: Callable | None = None,
        most_closed: int | None = None,
    ):
        if static_friction is None:
            static_friction = friction
        self.mass_matrix = mass_matrix
        self.effort = effort
        self.gap = _no_gaps if gap is None else gap
        self.normals = normals
        self.tangents = tangents
        if not callable(restitution):
            restitution = _Constant(per_contact("restitution", restitution, n_contacts))
        self.restitution = restitution
        self.rest_speed = as_rest_speed("rest_speed", rest_speed)
        self.surface = surface
        self.friction = per_contact("friction", friction, n_contacts)
        if not is_traced(self.friction) and not np.isfinite(self.friction).all():
            raise ValueError(
                f"Argument `friction` must be finite, but it is {friction}. A contact "
                "that sticks without a limit has `static_friction=jnp.inf`."
            )
        self.static_friction = per_contact(
            "static_friction", static_friction, n_contacts
        )
        self.dry_friction, self.dry = _dry(dry_friction)
        if tangents is None and self.dry_friction is not None and self.dry:
            self.tangents = _NoTangents((n_contacts, self.dry_friction.size))
        self.stabilization = parameter(stabilization)
        self.n_contacts = n_contacts + len(self.dry)
        self.apex = apex
        self.constraints = constraints
        self.velocity_to_qdot = velocity_to_qdot
        self.bias = bias
        bound = _bound(most_closed, n_contacts, apex)
        self.most_closed = None if bound is None else bound + len(self.dry)
        self.formulation = (
            IndexOne(stabilization) if formulation is None else formulation
        )

    @classmethod
    def from_lagrangian(
        cls,
        lagrangian: Callable,
        gap: Callable | None = None,
        n_contacts: int = 0,
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
        - `kwargs`: any other argument of `hj.mechanics.MechanicalSystem`.

        **Raises:**

        - `ValueError` with a `velocity_to_qdot`: `v` is the rate of `q` here.
        """
        if kwargs.get("velocity_to_qdot") is not None:
            raise ValueError(
                "Argument `velocity_to_qdot` does not go with a Lagrangian, which is a "
                "function of `q` and its rate. Pass mass matrix and effort of `v` to "
                "`hj.mechanics.MechanicalSystem`."
            )
        terms = LagrangianTerms(lagrangian, effort)
        return cls(terms.mass_matrix, terms.effort, gap, n_contacts, **kwargs)

    #
    # The three functions of a hybrid system
    #

    def flow(self, t, x, mode, args):
        q, v = x
        some = SomeContacts(self, q.dtype, mode == ContactMode.FREE)
        p = point(some, t, q, v, args)
        forces, _ = forces_of(some, p, active_in(some, p, some.take(mode)))
        acceleration = p.unconstrained + dot(p.response, forces)
        acceleration = jnp.where(jnp.any(mode < 0), jnp.nan, acceleration)
        return some.body.qdot(q, v), acceleration

    def guards(self, t, x, mode, args):
        q, v = x
        some = SomeContacts(self, q.dtype, mode == ContactMode.FREE)
        p, own = point(some, t, q, v, args), some.take(mode)
        g = watched_values(some, p, active_in(some, p, own), own)
        if self.most_closed is None:
            return g
        # The others are free.
        normal, *others = g.reshape(-1, self.most_closed)
        unwatched = jnp.full_like(p.every_gap, UNWATCHED)
        others = [some.put(g, unwatched) for g in others]
        return jnp.concatenate([some.put(normal, p.every_gap), *others])

    def jump(self, t, x, mode, event, args):
        every = SomeContacts(self, x[0].dtype)
        if self.most_closed is None:
            return transition(every, t, x, mode, event, args)
        n = self.n_contacts
        kind, contact = divided(event, n)
        here = jnp.arange(n) == contact
        taking_part = here | (mode != ContactMode.FREE)
        # Beside these, those that may touch in the same instant.
        gap = jnp.abs(every.whole._gap_at(t, x[0], args))
        some = SomeContacts(self, x[0].dtype, jnp.where(taking_part, -1, gap))
        slot = jnp.argmax(some.take(here)).astype(jnp.int32)
        slot = kind * self.most_closed + slot
        x, after = transition(some, t, x, some.take(mode), slot, args)
        crowded = here & (jnp.sum(taking_part) > self.most_closed)
        after = jnp.where(crowded, int(ContactMode.CROWDED), some.put(after, mode))
        return x, after

    def contact_forces(self, t, x, mode, args=None) -> tuple[Array, Array]:
        r"""The contact forces: normal and tangential, each of shape `(n_contacts,)`; in
        space the tangential ones have the shape `(n_contacts, 2)`.

        In units of force, and differentiable. $\lambda_n \ge 0$ pushes the gap open,
        $\lambda_t$ is along the tangent; both are zero where a contact is free. Of dry
        friction they are the largest force, and the one that there is. (The
        impulses at an impact come on top of them.)
        """
        q, v = x
        every = SomeContacts(self, q.dtype)
        p = point(every, t, q, v, args)
        forces, _ = forces_of(every, p, active_in(every, p, mode))
        n = self.n_contacts
        tangential = forces[n:] if self.tangents is not None else jnp.zeros((n,))
        if in_space(forces.shape[0], n):
            tangential = tangential.reshape(2, n).T
        return forces[:n], tangential.astype(q.dtype)

    def multipliers(self, t, x, mode, args=None) -> Float[Array, " m"]:
        r"""The Lagrange multipliers $\lambda$ of the constraints, whose forces are
        $-\Phi_q^\top \lambda$: as those of `hj.mechanics.Multibody`.
        """
        q, v = x
        every = SomeContacts(self, q.dtype)
        p = point(every, t, q, v, args)
        forces, _ = forces_of(every, p, active_in(every, p, mode))
        free, by_contacts = p.multipliers[:, 0], p.multipliers[:, 1:]
        return (free + dot(by_contacts, forces)).astype(q.dtype)

    #
    # Names, and the start
    #

    @property
    def naming(self) -> Names:
        kinds = (
            "touchdown, liftoff or apex",
            "slip backward or stop",
            "slip forward or stop",
            "jam",
        )
        contacts = range(self.n_contacts)
        return Names(
            modes=(tuple((mode.value, mode.name) for mode in ContactMode),),
            guards=tuple(f"contact {j}: {kind}" for kind in kinds for j in contacts),
            notes=tuple(_EXPLANATIONS.items()),
            place="contact",
        )

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
        every = SomeContacts(self, x[0].dtype)
        x, mode, faults = start_contacts(every, t, x, mode, args)
        if not is_traced((mode, faults)):
            for j, fault in enumerate(np.asarray(faults)):
                if fault > 0:
                    raise ValueError(FAULTS[int(fault) - 1].format(j))
        mode = jnp.where(faults > 0, int(ContactMode.INCONSISTENT), mode)
        mode = jnp.where(faults == len(FAULTS), int(ContactMode.CROWDED), mode)
        return x, mode

    def _check_shapes(self, t, x, args):
        q, v = x
        d, n = v.shape[0], self.n_contacts - len(self.dry)
        if self.n_contacts == 0:
            raise ValueError(
                "Argument `n_contacts` is 0, and there is no `dry_friction`. Take "
                "`hj.mechanics.Multibody`."
            )
        checks = {
            "gap": (lambda: self.gap(q, args), [(n,)]),
            "restitution": (lambda: self.restitution(q, v, args), [(n,), ()]),
        }
        if self.normals is not None:
            normals = lambda: self.normals(q, args)  # pyright: ignore
            checks["normals"] = (normals, [(n, d)])
        if self.tangents is not None:
            tangents = lambda: self.tangents(q, args)  # pyright: ignore
            checks["tangents"] = (tangents, [(n, d), (n, 2, d)])
        if self.surface is not None:
            checks["surface"] = (lambda: self.surface(t, args), [(n,)])  # pyright: ignore
        because = f"there are {n} contacts and the velocity has {d} entries"
        if self.dry_friction is not None and self.dry_friction.shape != (d,):
            raise ValueError(
                f"Argument `dry_friction` must have shape ({d},), as {because}, but it "
                f"has shape {self.dry_friction.shape}."
            )
        check_shapes(checks, because)

    #
    # Parts
    #

    def _gap_at(self, t, q, args) -> Float[Array, " n_contacts"]:
        gap = self.gap(q, args)
        gap = gap if self.surface is None else gap - self.surface(t, args)
        return with_dry(self, gap)

    @property
    def body(self) -> Multibody:
        """The same without contacts."""
        return Multibody(
            self.mass_matrix,
            self.effort,
            self.constraints,
            self.formulation,
            self.velocity_to_qdot,
            self.bias,
        )


def _bound(most_closed: int | None, n_contacts: int, apex: bool) -> int | None:
    if most_closed is None:
        return None
    if not isinstance(most_closed, int | np.integer) or most_closed < 1:
        raise ValueError(
            "Argument `most_closed` must be a positive integer, or `None`, but it is "
            f"{most_closed}."
        )
    if apex:
        raise ValueError(
            "Argument `most_closed` does not go with `apex=True`, with which all that "
            "rise are watched too. Leave one of them out."
        )
    return None if most_closed >= n_contacts else int(most_closed)


def _dry(dry_friction: ArrayLike | None):
    """The forces, and the velocities that have some."""
    if dry_friction is None:
        return None, ()
    forces = parameter(dry_friction)
    if forces.ndim != 1:
        raise ValueError(
            "Argument `dry_friction` must be a vector, one force for each velocity, "
            f"but it has shape {forces.shape}."
        )
    if is_traced(forces):
        return forces, tuple(range(forces.shape[0]))
    if not (np.isfinite(forces) & (np.asarray(forces) >= 0)).all():
        raise ValueError(
            "Argument `dry_friction` must be finite and not negative, but it is "
            f"{dry_friction}. What never moves is best left out of the velocities."
        )
    return forces, tuple(np.flatnonzero(forces).tolist())


def _no_gaps(q, args):
    return q[:0]


class _NoTangents(eqx.Module):
    shape: tuple[int, int] = eqx.field(static=True)

    def __call__(self, q, args):
        return jnp.zeros(self.shape, q.dtype)


class _Constant(eqx.Module):
    value: Float[Array, " n"]

    def __call__(self, q, v, args):
        return self.value


def per_contact(name: str, value, n: int) -> Float[Array, " n"]:
    array = parameter(value)
    if array.shape not in ((), (n,)):
        raise ValueError(
            f"Argument `{name}` must be a number or have one entry for each of the {n} "
            f"contacts, but it has shape {array.shape}."
        )
    return jnp.broadcast_to(array, (n,))


_EXPLANATIONS = {
    "CROWDED": "more contacts than `most_closed` are closed at once, or lift off. Pass "
    "a larger number, or `None`, to the system",
    "UNSOLVABLE": "no contact force or impulse was found that agrees with its "
    "friction, as may be in Painlevé's paradox, or with redundant contacts. Less "
    "friction, or another configuration, has one",
    "INCONSISTENT": "the start is below ground, or does not agree with the contact "
    "mode. Pass positive gaps for free contacts, and leave out `mode0`, or make the "
    "gaps and velocities of closed contacts zero",
}
