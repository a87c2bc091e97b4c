"""Jaxonomy: zero-crossing events of a `LeafSystem`, gradients by its adjoint solve."""

import jax.numpy as jnp
from jax_program import program
from jaxonomy import LeafSystem, Simulator, SimulatorOptions
from problems import (
    DAMPING,
    GRAVITY,
    HALF_WIDTH,
    INERTIA,
    LEG_LENGTH,
    Problem,
    RESTITUTION,
    STIFFNESS,
    TANGENTIAL_DAMPING,
    TOLERANCE,
)


PACKAGES = ("jaxonomy", "jax", "jaxlib", "numpy")

_FALLS, _CROSSES = "positive_then_non_positive", "crosses_zero"
# The least numbers of arcs that reach the end: the gradient's loop always goes over as
# many, and there is no error when they do not suffice.
_ARCS = {"ball": 6, "hopper": 5, "legs": 8, "balls": 57}


def build(problem: Problem, what: str):
    system, start, objective = _KINDS[problem.kind](problem)
    reverse = what in ("gradient", "jacrev")
    options = SimulatorOptions(
        math_backend="jax",
        ode_solver_method="dopri5",
        rtol=TOLERANCE,
        atol=TOLERANCE,
        enable_autodiff=reverse,
        max_major_steps=_ARCS[problem.kind] if reverse else None,
        # The fastest, and as accurate as the default of 16.
        max_checkpoints=2,
    )
    # What `jaxonomy.simulate` runs, less its work per call.
    simulator = Simulator(system, options=options)
    context = system.create_context()

    def value(theta):
        final = simulator.advance_to(problem.t1, start(context, theta)).context
        return final.continuous_state

    return program(problem, what, value, objective)


class _System(LeafSystem):
    """**Arguments:**

    - `flow(t, state, **parameters)`.
    - `events`: tuples of a guard and a jump, with the signature of `flow`, and the
        direction.
    - `feet`: how many have a discrete state, whether in contact.
    """

    def __init__(self, x, flow, events, feet=0, parameters=()):
        super().__init__()
        for name in parameters:
            self.declare_dynamic_parameter(name, 0.0)
        self.declare_continuous_state(default_value=jnp.asarray(x), ode=flow)
        if feet:
            self.declare_discrete_state(default_value=jnp.zeros(feet, bool))
        for guard, jump, direction in events:
            self.declare_zero_crossing(guard, jump, direction=direction)


def _ball(problem):
    def flow(t, state, gravity, restitution):
        return jnp.stack([state.continuous_state[1], -gravity])

    def guard(t, state, gravity, restitution):
        return state.continuous_state[0]

    def jump(t, state, gravity, restitution):
        v = state.continuous_state[1]
        return state.with_continuous_state(jnp.stack([0.0, -restitution * v]))

    def start(context, theta):
        context = context.with_continuous_state(theta[:2])
        return context.with_parameters({"gravity": theta[2], "restitution": theta[3]})

    parameters = ("gravity", "restitution")
    system = _System([0.0, 0.0], flow, [(guard, jump, _FALLS)], parameters=parameters)
    return system, start, lambda x: x[0]


def _balls(problem):
    n = problem.theta.size

    def flow(t, state):
        return jnp.concatenate([state.continuous_state[n:], jnp.full(n, -GRAVITY)])

    # One event for all balls: with one for each, it takes over twice as long.
    def falling(state):
        q, v = state.continuous_state[:n], state.continuous_state[n:]
        return jnp.where(v < 0, q, 1.0)

    def guard(t, state):
        return jnp.min(falling(state))

    def jump(t, state):
        q, v = state.continuous_state[:n], state.continuous_state[n:]
        hit = falling(state) <= 0
        q, v = jnp.where(hit, 0.0, q), jnp.where(hit, -RESTITUTION * v, v)
        return state.with_continuous_state(jnp.concatenate([q, v]))

    def start(context, heights):
        x = jnp.concatenate([heights, jnp.zeros(n)])
        return context.with_continuous_state(x)

    system = _System(jnp.zeros(2 * n), flow, [(guard, jump, _FALLS)])
    return system, start, lambda x: jnp.sum(x[:n])


def _toggle(i):
    def jump(t, state, **parameters):
        contact = state.discrete_state
        return state.with_discrete_state(contact.at[i].set(~contact[i]))

    return jump


def _hopper(problem):
    def flow(t, state, stiffness):
        z, v = state.continuous_state
        force = jnp.where(state.discrete_state[0], stiffness * (1 - z), 0.0)
        return jnp.stack([v, force - GRAVITY])

    def guard(t, state, stiffness):
        return state.continuous_state[0] - 1

    def start(context, theta):
        context = context.with_continuous_state(jnp.stack([theta[0], 0.0]))
        return context.with_parameters({"stiffness": theta[1]})

    events = [(guard, _toggle(0), _CROSSES)]
    system = _System([0.0, 0.0], flow, events, feet=1, parameters=("stiffness",))
    return system, start, lambda x: x[0]


def _legs(problem):
    side = jnp.array([HALF_WIDTH, -HALF_WIDTH])

    def feet(angle):
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return cos * side + sin * LEG_LENGTH, sin * side - cos * LEG_LENGTH

    def flow(t, state):
        _, z, angle, vx, vz, omega = state.continuous_state
        contact = state.discrete_state
        rx, rz = feet(angle)
        fz = contact * (-STIFFNESS * (z + rz) - DAMPING * (vz + omega * rx))
        fx = contact * (-TANGENTIAL_DAMPING * (vx - omega * rz))
        torque = jnp.sum(rx * fz - rz * fx)
        acceleration = [jnp.sum(fx), jnp.sum(fz) - GRAVITY, torque / INERTIA]
        return jnp.stack([vx, vz, omega, *acceleration])

    def height(i):
        def guard(t, state):
            x = state.continuous_state
            return x[1] + feet(x[2])[1][i]

        return guard

    events = [(height(i), _toggle(i), _CROSSES) for i in range(2)]
    system = _System(jnp.zeros(6), flow, events, feet=2)
    return system, lambda context, x: context.with_continuous_state(x), jnp.sum


_KINDS = {"ball": _ball, "balls": _balls, "hopper": _hopper, "legs": _legs}
