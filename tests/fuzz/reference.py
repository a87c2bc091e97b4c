"""Hybrid trajectories in NumPy, many at a time, and their derivatives by complex steps.

Nothing here is from the library. A trajectory is followed in short cells of time, by a
flow in closed form or by a Taylor series. A guard that has changed sign at the end of a
cell, or has a minimum below zero within it, is bisected. What happens is decided by the
real parts of all numbers; their imaginary parts, which are tiny, carry derivatives
through the same events: one step of Newton's method at a root attaches to its time how
it moves.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np


# Complex steps of this size leave no trace in real parts.
STEP = 1e-30
# Guards nearer than this to zero, in units of order one, are on their surface. Further
# inside they were put there.
ON = 1e-11
# Minima of guards that are nearer than this to zero are a matter of rounding, and so
# are events at which a guard moves this slowly.
GRAZE = 1e-7
# Of what a guard does that is not watched.
UNWATCHED = 1.0
# Of minima, whose value has no first-order error; and of roots, at most.
_BISECTIONS, _ITERATIONS = 28, 150


_SOON = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7)


class System(Protocol):
    """Arrays have their components first, and the trajectories last. `t` is the time
    since the start."""

    def start(self, z) -> tuple[np.ndarray, np.ndarray]:
        """State and mode, at first."""
        ...

    def flow(self, z, t, x, mode, dt) -> np.ndarray:
        """The state a little later, exactly."""
        ...

    def guards(self, z, t, x, mode) -> np.ndarray: ...

    def jump(self, z, t, x, mode, event) -> tuple[np.ndarray, np.ndarray]: ...


class Trajectory(NamedTuple):
    """Complex numbers have axes `(component, column, trajectory)`."""

    x: np.ndarray  # at the end
    mode: np.ndarray
    times: np.ndarray  # of the first events, since the start; 0 where there is none
    events: np.ndarray  # which guards fired, -1 where there is none
    after: np.ndarray  # the states after them, real: `(event, component, trajectory)`
    count: np.ndarray
    clear: np.ndarray  # neither grazing, nor more events than were asked for
    gap: np.ndarray  # the least time between two events
    rest: np.ndarray  # the least time from an event to the end, or to one after it


def march(system: System, z, cells: int, max_events: int) -> Trajectory:
    """`z` has shape `(parameters, columns, trajectories)`; its entry 1 is the duration.
    All columns of a trajectory have the same real parts."""
    run = _March(system, z, max_events)
    with np.errstate(all="ignore"):
        for k in range(cells):
            run.cell((k + 1) / cells)
        ahead = run.ahead()
    rest = np.where(run.count > 0, np.abs(z[1, 0].real - run.last), np.inf)
    rest = np.fmin(rest, ahead)
    clear = run.clear & np.all(np.isfinite(run.x.real), axis=(0, 1))
    return Trajectory(
        x=run.x,
        mode=run.mode,
        times=np.stack(run.times),
        events=run.events,
        after=run.after,
        count=run.count,
        clear=clear,
        gap=run.gap,
        rest=rest,
    )


class _March:
    def __init__(self, system, z, max_events):
        self.system, self.z, self.max_events = system, z, max_events
        n = z.shape[2]
        self.x, self.mode = system.start(z)
        self.t = np.zeros(z.shape[1:], complex)
        self.times = [np.zeros(z.shape[1:], complex) for _ in range(max_events)]
        self.events = np.full((max_events, n), -1)
        self.after = np.zeros((max_events, *self.x.shape[::2]))
        self.count = np.zeros(n, int)
        self.clear = np.ones(n, bool)
        self.gap = np.full(n, np.inf)
        self.last = np.zeros(n)

    def cell(self, share):
        """All trajectories, to a share of their duration."""
        lanes = np.arange(self.count.size)
        while lanes.size > 0:
            lanes = lanes[self.clear[lanes]]
            dt, event, inside = self._next(lanes, share)
            hit = event >= 0
            self._advance(lanes[~hit], share)
            lanes = lanes[hit]
            self._fire(lanes, dt[hit], event[hit], inside[hit])

    def _advance(self, lanes, share):
        z, t = self.z[:, :, lanes], self.t[:, lanes]
        dt = share * z[1] - t
        self.x[:, :, lanes] = self.system.flow(
            z, t, self.x[:, :, lanes], self.mode[:, lanes], dt
        )
        self.t[:, lanes] = share * z[1]

    def ahead(self):
        """In about which time the next event would come."""
        z, t, x = self.z[:, 0].real, self.t[0].real, self.x[:, 0].real
        g, rates = self._guards(z, t, x, self.mode, np.zeros_like(t))
        comes = (g > 0) & (rates < 0)
        return np.min(np.where(comes, -g / rates, np.inf), axis=0)

    def _guards(self, z, t, x, mode, s):
        """The guards after a while `s`, and their rates; of real numbers."""
        s = s + 1j * STEP
        later = self.system.flow(z, t, x, mode, s)
        g = self.system.guards(z, t + s, later, mode)
        return g.real, g.imag / STEP

    def _next(self, lanes, share):
        """When which guard fires first: -1 if none does."""
        z, t = self.z[:, 0, lanes].real, self.t[0, lanes].real
        x, mode = self.x[:, 0, lanes].real, self.mode[:, lanes]
        end = share * z[1] - t

        def guards(s, of: Any = slice(None)):
            return self._guards(z[:, of], t[of], x[:, of], mode[:, of], s)

        g0, r0 = guards(np.zeros_like(end))
        # What is in its set, and not leaving, fires there and then.
        now = (g0 <= 0) & (r0 <= 0)
        lateness = np.where(now, g0 / -np.where(now, np.minimum(r0, -1e-300), -1), 1)
        first = np.argmin(lateness, axis=0)
        any_now = now.any(axis=0)
        # How far this is from another order.
        if g0.shape[0] > 1:
            two = np.sort(lateness, axis=0)[:2]
            apart = np.where(two[1] <= 0, two[1] - two[0], np.inf)
            self.gap[lanes] = np.minimum(self.gap[lanes], apart)
        best = np.where(any_now, 0.0, np.inf)
        event = np.where(any_now, first, -1)
        inside = any_now & (np.take_along_axis(g0, first[None], 0)[0] < -ON)
        ahead = ~any_now & (end > 0)
        g1, r1 = guards(end)
        for j in range(g0.shape[0]):
            positive = (g0[j] > 0) | ((g0[j] >= -ON) & (r0[j] > 0))
            down = ahead & positive & (g1[j] <= 0)
            dips = ahead & (g0[j] > 0) & (g1[j] > 0) & (r0[j] < 0) & (r1[j] > 0)
            # One that was left inside its set, and turns round there.
            turns = ahead & ~positive & (g1[j] <= 0) & (r1[j] <= 0)
            self.clear[lanes[turns]] = False
            stop = end.copy()
            # Just after an event there may be another, much sooner than a cell.
            (of,) = np.nonzero(ahead & positive & (g0[j] <= ON) & (r0[j] > 0))
            for share in _SOON:
                if of.size > 0:
                    below = guards(share * end[of], of)[0][j] <= 0
                    stop[of[below]], down[of[below]] = share * end[of[below]], True
                    of = of[~below]
            dips &= ~down
            (of,) = np.nonzero(dips)
            if of.size > 0:
                s = _bisect(lambda s: -guards(s, of)[1][j], end[of])  # noqa: B023
                least = guards(s, of)[0][j]
                self.clear[lanes[of[np.abs(least) < GRAZE]]] = False
                stop[of], down[of] = s, least < 0
            (of,) = np.nonzero(down)
            if of.size > 0:
                s = _root(lambda s: [a[j] for a in guards(s, of)], stop[of])  # noqa: B023
                sooner = s < best[of]
                best[of] = np.where(sooner, s, best[of])
                event[of] = np.where(sooner, j, event[of])
        return best, event, inside

    def _fire(self, lanes, dt, event, inside):
        if lanes.size == 0:
            return
        z, t, x = self.z[:, :, lanes], self.t[:, lanes], self.x[:, :, lanes]
        mode, system = self.mode[:, lanes], self.system
        k = np.arange(lanes.size)
        later = system.flow(z, t, x, mode, dt + 0j)
        g = system.guards(z, t + dt, later, mode)[event, :, k].T
        # The rate, from the real parts alone.
        z0, t0, x0 = z[:, 0].real, t[0].real, x[:, 0].real
        there, rates = self._guards(z0, t0, x0, mode, dt)
        rate = rates[event, k]
        # How far others are that would have fired.
        other = (np.arange(rates.shape[0])[:, None] != event) & (rates < 0)
        away = np.abs(there / np.where(other, rates, -1))
        away = np.min(np.where(other, away, np.inf), axis=0)
        slow = ~inside & (rate > -GRAZE)
        step = np.where(inside, 0, dt - g / rate)
        t, x = t + step, system.flow(z, t, x, mode, step)
        x, mode = system.jump(z, t, x, mode, event)
        self.t[:, lanes], self.x[:, :, lanes], self.mode[:, lanes] = t, x, mode
        count = self.count[lanes]
        full = count >= self.max_events
        for i in range(self.max_events):
            which = count == i
            self.times[i][:, lanes[which]] = t[:, which]
            self.events[i, lanes[which]] = event[which]
            self.after[i][:, lanes[which]] = x[:, 0, which].real
        # What was put far inside stays there, whatever rounding does.
        time = t[0].real
        depth = g[0].real / np.minimum(rate, -1e-300)
        near = np.minimum(np.where(inside, depth, time - self.last[lanes]), away)
        self.gap[lanes] = np.minimum(self.gap[lanes], np.abs(near))
        self.last[lanes] = time
        self.count[lanes] = count + 1
        self.clear[lanes[full | slow]] = False


def _bisect(fn, end):
    """Where a function, positive at first, is not any more: about there."""
    low, high = np.zeros_like(end), end.copy()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        positive = fn(middle) > 0
        low, high = np.where(positive, middle, low), np.where(positive, high, middle)
    return high


def _root(fn, end):
    """Where a function, positive at first, is not any more: by Newton's method, and
    bisection where that leaves the bracket. `fn` gives it and its rate."""
    low, high, x = np.zeros_like(end), end.copy(), end / 2
    for k in range(_ITERATIONS):
        value, rate = fn(x)
        low, high = np.where(value > 0, x, low), np.where(value > 0, high, x)
        step = x - value / rate
        # Every third time the bracket is halved, whatever Newton says.
        good = (step > low) & (step < high) & (k % 3 != 2)
        new = np.where(good, step, (low + high) / 2)
        near = good & (np.abs(new - x) <= 4e-16 * end)
        x = np.where(near | (high - low <= 4e-16 * end), x, new)
        if np.all(near | (high - low <= 4e-16 * end)):
            break
    return x


def affine_flow(A, b, x, dt):
    """exp(A dt) x + ..., for dx/dt = A x + b with `A` of axes `(row, column, ...)`.

    A Taylor series, in pieces in which it converges to rounding.
    """
    times = lambda vector: np.sum(A * vector, axis=1)
    if x.size == 0:
        return x
    size = np.max(np.sum(np.abs(A.real), axis=1)) * np.max(np.abs(np.real(dt)))
    pieces = int(np.ceil(size)) + 1
    h = dt / pieces
    for _ in range(pieces):
        term = (times(x) + b) * h
        x, bound, k = x + term, size / pieces, 2
        # At least to the terms that carry the rates.
        while bound > 1e-18 or k < 4:
            term = times(term) * (h / k)
            x, bound, k = x + term, bound * size / pieces / k, k + 1
    return x
