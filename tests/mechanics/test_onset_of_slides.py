"""Slides that begin slowly, or stay slow: friction balances what drives them."""

from typing import Any

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import MechanicalSystem
from scipy.integrate import solve_ivp

from ..helpers import slope_along


_g, _friction, _spring, _t1 = 9.81, 0.5, 4.0, 1.5


def _pulls(xp, t, q, turn, force, growth, swing, w, _):
    """On a mass on a plane, and on another one, that is pulled along by a spring."""
    size = force + growth * t + swing * xp.sin(w * t)
    drive = size * xp.stack([xp.cos(turn * t), xp.sin(turn * t)])
    spring = _spring * (q[2:] - q[:2])
    return xp.concatenate([drive + spring, -spring])


@jax.jit
def _simulated(drive, change, tol):
    """The last state, and its derivative."""

    def effort(t, q, v, args):
        pulls = _pulls(jnp, t, jnp.concatenate([q[:2], q[3:]]), *args)
        return jnp.concatenate([pulls[:2], jnp.array([-_g]), pulls[2:]])

    body = MechanicalSystem(
        lambda q, args: jnp.ones(5),
        effort,
        lambda q, args: q[2:3],
        1,
        tangents=lambda q, args: jnp.eye(5)[None, :2],
        friction=_friction,
    )

    def final(drive):
        sol = hj.simulate(
            *(body, 0.0, _t1, (jnp.zeros(5), drive[-1] * jnp.eye(5)[0])),
            args=drive,
            stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol),
            max_events=32,
        )
        return jnp.concatenate([jnp.delete(x, 2) for x in sol.x1]), sol.events.count

    return jax.jvp(final, (drive,), (change,), has_aux=True)


def _regularised(drive):
    """The same, with friction that is that of a fluid below 1e-10 m/s."""

    def flow(t, x):
        q, v = x[:4], x[4:]
        speed = np.sqrt(v[:2] @ v[:2] + 1e-20)
        rubs = np.append(_friction * _g * v[:2] / speed, [0, 0])
        return np.concatenate([v, _pulls(np, t, q, *drive) - rubs])

    def slopes(t, x):
        v = x[4:6]
        speed = np.sqrt(v @ v + 1e-20)
        of_pull = _spring * np.kron([[-1, 1], [1, -1]], np.eye(2))
        slopes = np.block([[np.zeros((4, 4)), np.eye(4)], [of_pull, np.zeros((4, 4))]])
        across = np.eye(2) / speed - np.outer(v, v) / speed**3
        slopes[4:6, 4:6] = -_friction * _g * across
        return slopes

    stiff: Any = dict(method="Radau", jac=slopes, rtol=1e-10, atol=1e-13)
    return solve_ivp(flow, (0, _t1), drive[-1] * np.eye(8)[4], **stiff).y[:, -1]


def test_slides_that_begin_slowly():
    # Where slip is slow its direction follows from forces, at once. Explicit solvers
    # had to resolve that; at loose tolerances they kept it from growing, at no notice.
    change = np.array([1.0, 0.0, -0.5, 0.0, 0.0, 0.0])
    for turn, growth in [(-0.5, 4.0), (2.0, 2.0), (4.0, 5.0)]:
        drive = np.array([turn, 3.0, growth, 0.0, 1.0, 0.0])
        sliding = _regularised(drive)
        slopes = slope_along(_regularised, drive, change, 1e-3)
        for tol in (1e-5, 1e-6, 1e-8):
            x, dx, count = _simulated(drive, change, tol)
            assert count >= 2
            np.testing.assert_allclose(x, sliding, rtol=0, atol=10 * tol)
            np.testing.assert_allclose(dx, slopes, rtol=0, atol=4 * tol**0.75)


def test_creep():
    # The drive swings about friction, by a hundredth of it or less. What slips slowly,
    # later or from the start, went on where it slows down.
    grip = _friction * _g
    drives = [(1, 0.001, 6, 0), (1, 0.003, 9, 0), (2, 0.01, 6, 0), (1, -0.001, 6, 1e-3)]
    for turn, swing, w, speed in drives:
        drive = np.array([turn, grip, 0.0, swing * grip, w, speed])
        change = np.array([0.3, 0.0, 0.0, 0.001 * grip, 0.5, speed])
        creeping = _regularised(drive)
        slopes = slope_along(_regularised, drive, change, 1e-3)
        for tol in (1e-5, 1e-6, 1e-7):
            x, dx, count = _simulated(drive, change, tol)
            assert count >= 3
            np.testing.assert_allclose(x, creeping, rtol=0, atol=10 * tol)
            np.testing.assert_allclose(dx, slopes, rtol=0, atol=0.2 * tol**0.5)
