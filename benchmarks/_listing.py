"""Listing 1 of Anderson and Revzen, written plainly in NumPy, and the plate for it."""

import numpy as np
from scipy.integrate import RK45


# A plate that is turned upright by errors takes ever shorter steps: its state is NaN.
_MAX_STEPS = 20_000


def integrate(f, h, Dh, eps, x0, t0, tf, max_step):
    """Their integrator, with SciPy's Dormand-Prince method.

    Where it departs from the listing: it stops at `tf`; the field gets `h`, as in
    their text; a candidate that moves away is not projected onto.
    """
    t, x = t0, np.array(x0, float)
    steps = 0
    crossed = h(x) >= 0
    while t < tf:
        hx = h(x)
        dt = np.full(hx.shape, np.inf)
        candidates = (hx > -eps) & ~crossed
        if candidates.any():
            flow = f(x, hx)
            rate = Dh(x) @ flow
            live = candidates & (rate > 0)
            dt[live] = -hx[live] / rate[live]
        j = np.argmin(dt)
        if np.isfinite(dt[j]):
            t, x = t + dt[j], x + dt[j] * flow
            crossed[j] = True
            continue
        solver = RK45(
            lambda t, x: f(x, h(x)), t, x, tf, max_step=max_step, rtol=1e-4, atol=1e-4
        )
        before = h(x)
        while solver.status == "running":
            solver.step()
            steps += 1
            after = h(solver.y)
            entered = ((before < -eps) & (after >= -eps)).any()
            if entered or steps > _MAX_STEPS:
                break
            before = after
        if solver.status == "failed" or steps > _MAX_STEPS:
            return np.full_like(x, np.nan)
        t, x = solver.t, solver.y
        if crossed.all():
            crossed = h(x) >= 0
    return x


class Plate:
    """Problem P6 for `integrate`; the state is (x, z, theta) and their rates."""

    def __init__(self, n: int):
        self.n = n
        self.places = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)

    def h(self, x):
        depths = 1 + np.tan(x[2]) * (x[0] - self.places) - x[1]
        return np.concatenate([depths, -depths])

    def Dh(self, x):
        slopes = np.zeros((self.n, 6))
        slopes[:, 0] = np.tan(x[2])
        slopes[:, 1] = -1
        slopes[:, 2] = (x[0] - self.places) / np.cos(x[2]) ** 2
        return np.concatenate([slopes, -slopes])

    def f(self, x, h):
        slope = np.tan(x[2])
        levers = (1 + slope**2) * (x[0] - self.places)
        depths = h[: self.n]
        rates = slope * x[3] - x[4] + levers * x[5]
        forces = (1000 * depths + 30 * rates) / self.n
        forces = np.where(depths > 0, forces, 0.0)
        push = forces.sum()
        return np.array([*x[3:], -slope * push, push - 9.81, -(forces * levers).sum()])
