"""Times that are large, near each other, or where a piece begins."""

import functools
from typing import Any

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _jit(f):
    return jax.jit(jax.vmap(f))


class _Marks(hj.AbstractHybridSystem):
    """Moves at speed 1 past two marks, `args`, after which it is 2 and 3 times as fast:
    the state knows by how much it is ahead."""

    def flow(self, t, x, mode, args):
        return jnp.stack([jnp.ones_like(x[0]), 1.0 * jnp.sum(mode, dtype=x.dtype)])

    def guards(self, t, x, mode, args):
        return jnp.where(mode > 0, 1.0, args - x[0])

    def jump(self, t, x, mode, event, args):
        return x, jnp.where(jnp.arange(2) == event, event + 1, mode)


def _pass(t0, span, marks, checkpoints=None):
    x0, mode0 = jnp.zeros(2, marks.dtype), jnp.zeros(2, jnp.int32)
    return hj.simulate(
        _Marks(),
        t0,
        t0 + span,
        x0,
        mode0,
        marks,
        max_steps=128,
        max_events=4,
        checkpoints=checkpoints,
        throw=False,
    )


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0))
def _passed(t0, span, marks):
    """The times, the last state and the events, and the derivatives of the former."""

    def run(marks):
        sol = _pass(t0, span, marks)
        return jnp.append(sol.events.t[:2] - t0, sol.x1[1]), sol.events.event[:2]

    value, push, event = jax.linearize(run, marks, has_aux=True)
    return value, event, jax.vmap(push)(jnp.eye(2, dtype=marks.dtype))


@pytest.mark.parametrize(
    "dtype, t0, span, gap",
    [
        (np.float64, 1.7e9, 10.0, 0.05),
        (np.float64, 1.7e9, 10.0, 1e-4),
        (np.float32, 0.0, 1000.0, 0.02),
    ],
)
def test_events_at_large_times(dtype, t0, span, gap):
    # Their order is the right one, and so is the derivative, of both.
    first = span * np.linspace(0.3, 0.7, 9)
    marks = jnp.asarray(np.stack([first, first + gap], axis=1), dtype)
    marks = jnp.concatenate([marks, marks[:, ::-1]])
    t0, span = jnp.asarray(t0, dtype), jnp.asarray(span, dtype)
    value, event, slope = _passed(t0, span, marks)
    np.testing.assert_array_equal(event, np.argsort(marks, axis=1))
    rounding = 32 * np.finfo(dtype).eps * float(t0 + span)
    np.testing.assert_allclose(value[:, :2], np.sort(marks, axis=1), atol=rounding)
    # A reset of two marks in one instant would log one time.
    np.testing.assert_allclose(np.diff(value[:, :2]), gap, atol=2 * rounding)
    expected = np.zeros((18, 2, 3))
    expected[:9, [0, 1], [0, 1]] = 1
    expected[9:, [0, 1], [1, 0]] = 1
    expected[:, :, 2] = [-1, -2]
    np.testing.assert_allclose(slope, expected, atol=1e-5)


@pytest.mark.thorough
def test_after_a_piece_begins():
    # The pieces begin at 0.25, 0.5 and 0.75: events a few rounding errors from there.
    eps = np.finfo(np.float64).eps
    shift = np.concatenate([np.arange(-70, 71, 2), 1e3 * np.arange(-5, 6)]) * eps
    first = (np.array([0.25, 0.5, 0.75])[:, None] + shift).ravel()
    marks = np.stack([first, np.full_like(first, 0.9)], axis=1)

    def run(marks, t1):
        sol = _pass(0.0, t1, marks, checkpoints=4)
        return jnp.append(sol.events.t[:2], sol.x1[1])

    def both(marks):
        one = jnp.asarray(1.0)
        given = jnp.array([1.0, 0.0])
        push = lambda v: jax.jvp(lambda m: run(m, one), (marks,), (v,))[1]
        slopes = jax.vmap(lambda sign: sign * push(sign * given))(jnp.array([1.0, -1]))
        pull = jax.grad(lambda m: run(m, one)[2])(marks)
        return run(marks, one), slopes, pull

    value, slopes, pull = _jit(both)(marks)
    np.testing.assert_allclose(value[:, 0], first, rtol=0, atol=32 * eps)
    expected = np.broadcast_to([1, 0, -1], slopes.shape)
    np.testing.assert_allclose(slopes, expected)
    np.testing.assert_allclose(pull, np.array([[-1, -2]] * first.size))


def test_unresolved():
    x0 = np.zeros(2, np.float32)

    def run(t0, t1, x0: Any = x0):
        marks = jnp.asarray([2.0, 3.0], x0.dtype)
        mode0 = jnp.zeros(2, jnp.int32)
        return hj.simulate(
            _Marks(), t0, t1, x0, mode0, marks, max_steps=64, throw=False
        )

    for t0, t1 in ((1e8, 1e8 + 10), (-1e8, 10 - 1e8), (1e8, np.float64(1e8) + 1000)):
        with pytest.raises(ValueError, match="`t0` and `t1` are .*float32.*from `t0`"):
            run(t0, t1)
    t0 = jnp.array([1e8, 1e8, 1e8, 0.0, 0.0, 1e3])
    t1 = t0 + jnp.array([10.0, 1000.0, 0.0, 10.0, 1e-30, 10.0])
    result = jax.jit(jax.vmap(lambda t0, t1: run(t0, t1).result))(t0, t1)
    refused = np.array([True, True, False, False, False, False])
    np.testing.assert_array_equal(result == hj.RESULTS.unresolved_interval, refused)
    np.testing.assert_array_equal(result == hj.RESULTS.successful, ~refused)
    # A state in float64 can.
    sol = run(1e8, 1e8 + 10, np.zeros(2))
    np.testing.assert_allclose(sol.x1, [10.0, 1 * 1 + 3 * 7], rtol=1e-6)
