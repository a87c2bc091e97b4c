"""The loop, one iteration after the other: its outcomes exclude each other, and it
never stands still."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import pytest
from hybridjax import models
from hybridjax._jax.pack import Packer
from hybridjax._jax.reduce import any_of
from hybridjax._loop.crossing import search
from hybridjax._loop.landing import LandingLoop
from hybridjax._loop.projection import ProjectionLoop
from hybridjax._loop.results import RESULTS
from hybridjax._loop.state import Settings
from hybridjax._loop.tape import Row
from hybridjax._systems.flat import flatten_system
from hybridjax._systems.start import start


class _Clocked(hj.AbstractHybridSystem):
    """Is set back by 3 whenever a time comes, and rises in between."""

    def flow(self, t, x, mode, args):
        return jnp.ones_like(x)

    def guards(self, t, x, mode, args):
        return jnp.where(t >= 1.1 * (mode + 1), -1.0, 1.0) + 0.1 * x

    def jump(self, t, x, mode, event, args):
        return x - 3, mode + 1


_CASES = {
    # Bounces that come closer and closer, until they accumulate.
    "ball": lambda: (models.BouncingBall(), jnp.array([1.0, 0.0]), 0, 4.5),
    # A guard that a cubic represents over short steps only.
    "paddle": lambda: (
        models.BallOnPaddle(frequency=60.0),
        jnp.array([1.0, 0.0]),
        0,
        1.0,
    ),
    # Bounces on a height that is rounded: the last ones are not resolved.
    "rest": lambda: (
        models.BallOnPaddle(restitution=0.4, frequency=1.0),
        jnp.array([1.0, 0.0]),
        0,
        4.5,
    ),
    # A guard that drops.
    "clocked": lambda: (_Clocked(), jnp.array([1.0]), 0, 4.5),
    # Times that are known, of two clocks that coincide now and then.
    "ticks": lambda: (
        hj.with_clocks(
            models.BouncingBall(restitution=1.0),
            {
                "slow": (hj.Clock(0.3), lambda t, x, mode, args: (x * 0.99, mode)),
                "fast": (hj.Clock(0.1), lambda t, x, mode, args: (x + 0.01, mode)),
            },
        ),
        jnp.array([1.0, 0.0]),
        0,
        3.0,
    ),
    # Two guards, also in one instant.
    "corner": lambda: (
        models.piecewise_constant(models.linear_table(0.3, 2)),
        jnp.array([-1.0, -1.0]),
        None,
        4.0,
    ),
    "hopper": lambda: (models.spring_hopper(), jnp.array([1.5, 0.0]), None, 4.0),
    # Large enough for the loop to look later: see `State.known`.
    "robot": lambda: (
        models.planar_monoped(),
        (jnp.array([0.0, 1.0, 0.0, 0.5, -0.5]), jnp.zeros(5)),
        None,
        0.4,
    ),
}


def _loop(name, event_method, controller, max_events=512):
    system, x0, mode0, t1 = _CASES[name]()
    begin = start(system, 0.0, x0, mode0, None)
    flat, x, _ = flatten_system(begin.system, begin.t, begin.x, begin.mode, None)
    settings = Settings(
        solver=dfx.Tsit5(),
        controller=controller,
        dt0=None if isinstance(controller, dfx.PIDController) else jnp.asarray(0.01),
        event_method=event_method,
        progress_meter=dfx.NoProgressMeter(),
        tangent_tol=None,
        interval=(begin.t, jnp.asarray(t1, begin.t.dtype)),
        resolved=jnp.asarray(True),
        max_steps=4096,
        max_events=max_events,
    )
    projects = isinstance(event_method, hj.Project)
    cls = ProjectionLoop if projects else LandingLoop
    t1 = jnp.asarray(t1, begin.t.dtype)
    return cls(flat, begin.t, t1, settings), x, begin.mode


def _outcomes(loop, s):
    """How many outcomes the next iteration has."""
    landing = s.approach
    dt = jnp.where(landing.active, landing.dt, loop.aim(s) - s.t)
    s, a = loop.attempt(s, dt, s.t + dt)
    fire = ~s.done & any_of(loop.fires_now(s))
    moving = ~s.done & ~fire & ~landing.active
    found = search(s, a, moving & a.keep, loop.grazing_tol, loop.short)
    contact = loop.contact(s, a)
    decided = loop.decide(s, a, fire, found, contact)
    if loop.system.is_timed:
        decided, _ = loop.arrival(a, found, decided, contact)
    return sum(o.astype(int) for o in decided), s.done


def _iterations(loop, x, mode):
    """What each iteration goes from, what it writes down, how many outcomes it has, and
    what it leads to."""
    first = jax.jit(loop.start)(x, mode)
    states = Packer(first)
    t = loop.t0
    no = jnp.asarray(False)
    rows = Packer(Row(t, t, t, x, x, mode, jnp.asarray(0, jnp.int32), no, no))

    @jax.jit
    def iterate(packed):
        s = states.unpack(packed)
        new, row = loop.iterate(states, rows, packed)
        outcomes = jnp.asarray(1), jnp.asarray(False)
        if isinstance(loop, LandingLoop):
            outcomes = _outcomes(loop, s)
        return new, rows.unpack(row), outcomes

    before, packed = first, states.pack(first)
    while not before.done:
        packed, row, outcomes = iterate(packed)
        after = states.unpack(packed)
        yield before, row, outcomes, after
        before = after


_ADAPTIVE = dfx.PIDController(rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "name, event_method, controller",
    [
        ("ball", hj.Locate(), _ADAPTIVE),
        pytest.param("paddle", hj.Locate(), _ADAPTIVE, marks=pytest.mark.thorough),
        ("paddle", hj.Locate(), dfx.ConstantStepSize()),
        ("rest", hj.Locate(), _ADAPTIVE),
        pytest.param(
            "rest", hj.Locate(), dfx.ConstantStepSize(), marks=pytest.mark.thorough
        ),
        pytest.param("clocked", hj.Locate(), _ADAPTIVE, marks=pytest.mark.thorough),
        pytest.param("ticks", hj.Locate(), _ADAPTIVE, marks=pytest.mark.thorough),
        ("ticks", hj.Locate(), dfx.ConstantStepSize()),
        ("corner", hj.Locate(), _ADAPTIVE),
        ("corner", hj.Project(1e-3), _ADAPTIVE),
        pytest.param("hopper", hj.Locate(), _ADAPTIVE, marks=pytest.mark.thorough),
        pytest.param("robot", hj.Locate(), _ADAPTIVE, marks=pytest.mark.thorough),
    ],
)
def test_never_stands_still(name, event_method, controller):
    loop, x, mode = _loop(name, event_method, controller)
    events, end = 0, None
    for before, row, outcomes, after in _iterations(loop, x, mode):
        number, nothing_to_do = outcomes
        assert number == (0 if nothing_to_do else 1)
        event = row.event >= 0
        events += int(event)
        assert row.dt >= 0 and row.t == before.t
        assert after.t >= before.t and after.guard_dt > 0
        assert (after.num_events > before.num_events) == event
        # Without an event, a row is a step to a later time.
        assert event or row.dt == 0 or after.t > before.t
        assert after.blurred <= 9
        assert (after.firings.close <= loop.system.n_guards + 8).all()
        end = after
        if after.done:
            continue
        landing = getattr(after.approach, "active", jnp.asarray(False))
        step = after.approach.dt if landing else loop.aim(after) - after.t
        assert step > 0 or after.t == loop.t1
        if after.t == before.t and not event:
            # It stands where it stood: the next step corrects a landing, a few times,
            # or is a shorter one.
            assert row.dt == 0
            if landing and before.approach.active:
                assert after.approach.attempts == before.approach.attempts + 1 <= 8
            else:
                assert landing or step < loop.aim(before) - before.t
    assert end is not None and events > 0
    accumulates = name in ("ball", "rest")
    assert end.result == (RESULTS.zeno if accumulates else RESULTS.successful)
