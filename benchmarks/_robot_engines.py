"""What falls in `_gymnasium.py`, by hybridjax, by MJX and by MuJoCo in C."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from _gymnasium import Fall, mujoco


SECONDS = 1.0
REST_SPEED = 1e-3  # m/s, of hybridjax; else feet that creep make a fall stiff
MOST_CLOSED = 16  # of them at once, of hybridjax
MAX_STEPS, MAX_EVENTS = 8192, 2048


class Engine(NamedTuple):
    """`forward(setting, u)` and `gradient(setting, u)` take the controls of all lanes:
    the final positions, and the derivatives of the root's final x by the controls."""

    forward: Callable
    gradient: Callable
    settings: dict[str, Any]  # by name, from coarse to fine
    # Finer than these; and one that is less so, which tells how near it is. `None` is
    # that of MuJoCo.
    limit: tuple[Any, Any] | None = None
    difference: float = 0.0  # of controls, where states of the limit are differenced


def hybridjax(fall: Fall, solver: str = "Tsit5") -> Engine:
    import diffrax
    import hybridjax as hj
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    robot = hj.robots.from_mjcf(
        fall.model, rest_speed=REST_SPEED, most_closed=MOST_CLOSED
    )
    x0 = jnp.asarray(fall.q), jnp.zeros(fall.model.nv)
    free = jnp.zeros(len(robot.contacts), int)

    def final(u, tolerance):
        sol = hj.simulate(
            robot.system,
            *(0.0, SECONDS, x0, free, u),
            solver=getattr(diffrax, solver)(),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_steps=MAX_STEPS,
            max_events=MAX_EVENTS,
            throw=False,
        )
        return sol.x1[0], sol.result == hj.RESULTS.successful

    def slope(u, tolerance):
        def x(u):
            q, done = final(u, tolerance)
            return q[0], done

        return jax.grad(x, has_aux=True)(u)

    def of_successful(fn):
        def run(u, tolerance):
            values, done = fn(u, tolerance)
            return jnp.where(done, values, jnp.nan)

        def one_by_one(u, tolerance):
            return hj.rollout(lambda u: run(u, tolerance), u, chunk_size=1)

        return OfLanes(run, None if on_gpu() else one_by_one)

    settings = {f"tolerance {tol:.0e}": tol for tol in (1e-4, 1e-6, 1e-8)}
    limit = 1e-11, 1e-10
    # What redundant feet do not determine has noise of 1e-8, and those are in space;
    # the walker's outcome bends in less than 1e-4.
    step = 1e-4 if fall.model.nq > fall.model.nv else 1e-6
    return Engine(of_successful(final), of_successful(slope), settings, limit, step)


def of_third_order(fall: Fall) -> Engine:
    """Steps that end at events are short: fewer stages do for them. The limit is that
    of the other solver."""
    engine = hybridjax(fall, "Bosh3")
    settings = dict(list(engine.settings.items())[:1])
    return engine._replace(settings=settings, limit=None)


def mjx(fall: Fall) -> Engine:
    """In forward mode, one tangent for each control: reverse mode refuses its
    solver."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    from _mjx import as_double
    from mujoco import mjx

    model = as_double(mjx.put_model(fall.model))
    data = as_double(mjx.make_data(fall.model))
    data = data.replace(qpos=jnp.asarray(fall.q))

    def final(u, dt):
        timed = model.replace(opt=model.opt.replace(timestep=dt))
        start = data.replace(ctrl=u)
        steps = jnp.round(SECONDS / dt).astype(int)
        step = lambda _, data: mjx.step(timed, data)
        return jax.lax.fori_loop(0, steps, step, start).qpos

    def slope(u, dt):
        along = lambda e: jax.jvp(lambda u: final(u, dt)[0], (u,), (e,))[1]
        return jax.vmap(along)(jnp.eye(u.shape[0]))

    return Engine(OfLanes(final), OfLanes(slope), _steps(fall, (1, 4)))


def in_c(fall: Fall) -> Engine:
    """MuJoCo, one lane after the other, with central differences for gradients."""
    model, data = fall.model, mujoco.MjData(fall.model)
    dt, difference = model.opt.timestep, 1e-2

    def final(dt, u):
        model.opt.timestep = dt
        mujoco.mj_resetData(model, data)
        data.qpos[:] = fall.q
        data.ctrl[:] = u
        mujoco.mj_step(model, data, nstep=round(SECONDS / dt))
        return data.qpos.copy()

    forward = lambda dt, u: np.stack([final(dt, lane) for lane in u])
    gradient = lambda dt, u: differences(forward, dt, u, difference)
    limit = dt / 128, dt / 64
    return Engine(forward, gradient, _steps(fall, (1, 4, 16)), limit, difference)


ENGINES = {
    "hybridjax": hybridjax,
    "hybridjax:Bosh3": of_third_order,
    "MJX": mjx,
    "MuJoCo": in_c,
}


def differences(
    forward: Callable, setting, u: np.ndarray, step: float, controls: int | None = None
) -> np.ndarray:
    """Central ones of the root's final x, by the first controls, or all."""
    x = lambda u: forward(setting, u[None])[0, 0]
    moves = step * np.eye(u.shape[1])[:controls]
    of_lane = lambda u: [(x(u + e) - x(u - e)) / (2 * step) for e in moves]
    return np.array([of_lane(lane) for lane in u])


def _steps(fall: Fall, parts) -> dict[str, float]:
    dt = fall.model.opt.timestep
    return {f"steps of {1e3 * dt / part:.3g} ms": dt / part for part in parts}


class OfLanes:
    """A function of the controls of all lanes, by a program for their number, and for
    one that has no axis for it."""

    def __init__(self, fn: Callable, batch: Callable | None = None):
        import jax

        self.fn, self.batch = fn, batch or jax.vmap(fn, (0, None))
        self.programs: dict[int, Callable] = {}

    def compile(self, setting, u):
        """So that it need not be called, which may take minutes, to be compiled."""
        import hybridjax as hj
        import jax

        one = len(u) == 1
        # The same options for all: they are XLA's.
        options = hj.compiler_options("fast_to_run")
        fn = jax.jit(self.fn if one else self.batch, compiler_options=options)
        traced = fn.trace(u[0] if one else u, np.asarray(setting))
        self.programs[len(u)] = traced.lower().compile()

    def __call__(self, setting, u):
        if len(u) not in self.programs:
            self.compile(setting, u)
        program, setting = self.programs[len(u)], np.asarray(setting)
        if len(u) == 1:
            return np.asarray(program(u[0], setting))[None]
        return np.asarray(program(u, setting))


def on_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


def timed(fn: Callable, *args, enough: float = 0.0) -> tuple[np.ndarray, float]:
    """The result, and the least time of some calls, which take `enough` seconds. CPU
    seconds, as the machine may have other work; those of the wall if a GPU does it."""
    clock = time.perf_counter if on_gpu() else time.process_time
    least, spent, result = np.inf, 0.0, np.empty(0)
    while least == np.inf or spent < enough:
        begin = clock()
        result = fn(*args)
        taken = clock() - begin
        least, spent = min(least, taken), spent + taken
    return result, least
