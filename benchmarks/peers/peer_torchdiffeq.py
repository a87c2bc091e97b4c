"""torchdiffeq: `odeint_event` in a loop, gradients by autograd through the solver."""

import torch
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
from torchdiffeq import odeint_event


PACKAGES = ("torchdiffeq", "torch", "numpy")

# The tensors are tiny.
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
# Ready-made, as operations with Python numbers are slower.
_ZERO, _ONE = torch.tensor(0.0), torch.tensor(1.0)


def build(problem: Problem, what: str):
    solve, objective = _KINDS[problem.kind]

    def value(theta):
        with torch.inference_mode():
            return solve(theta, problem.t1)

    def gradient(theta):
        theta = theta.clone().requires_grad_()
        final = objective(solve(theta, problem.t1))
        return final.detach(), torch.autograd.grad(final, theta)[0]

    run = value if what == "value" else gradient
    theta = torch.tensor(problem.theta)
    if not problem.batched:
        return lambda: run(theta)
    # It has no events that are batched: lanes one by one.
    if what == "value":
        return lambda: torch.stack([run(lane) for lane in theta])
    return lambda: tuple(map(torch.stack, zip(*map(run, theta), strict=True)))


def _loop(flow, guards, jump, x, mode, t1):
    """Runs from event to event.

    **Arguments:**

    - `flow(t, x, mode)`; `guards(x, mode)`, a vector whose entries fall to zero, and
        whether they are falling; `jump(x, mode, i)`.
    """
    t, t1 = _ZERO, torch.tensor(t1)
    while True:
        # The backward pass calls both functions again, in this mode: hence bound now.
        def distance(t, x, mode=mode):
            # Only what falls: not the guard that has just been crossed.
            height, falling = guards(x, mode)
            heights = torch.where(falling, height, _ONE)
            return torch.minimum(heights.min(), t1 - t)

        t, xs = odeint_event(
            lambda t, x, mode=mode: flow(t, x, mode),
            x,
            t,
            event_fn=distance,
            method="dopri5",
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )
        x = xs[-1]
        with torch.no_grad():
            height, falling = guards(x, mode)
            heights = torch.where(falling, height, _ONE)
            fired = heights.argmin().item()
            if t1 - t < heights[fired]:
                return x
        x, mode = jump(x, mode, fired)


def _balls_with(heights, speeds, gravity, restitution, t1):
    n = heights.numel()
    fall = -gravity.expand(n)

    def jump(x, mode, i):
        bounce = torch.zeros(n, dtype=bool)
        bounce[i] = True
        q, v = x[:n], x[n:]
        q, v = torch.where(bounce, 0.0, q), torch.where(bounce, -restitution * v, v)
        return torch.cat([q, v]), mode

    return _loop(
        lambda t, x, mode: torch.cat([x[n:], fall]),
        lambda x, mode: (x[:n], x[n:] < _ZERO),
        jump,
        torch.cat([heights, speeds]),
        0,
        t1,
    )


def _ball(theta, t1):
    return _balls_with(theta[:1], theta[1:2], theta[2], theta[3], t1)


def _balls(heights, t1):
    gravity, restitution = torch.tensor([GRAVITY, RESTITUTION])
    return _balls_with(heights, torch.zeros_like(heights), gravity, restitution, t1)


def _hopper(theta, t1):
    z0, stiffness = theta
    fall = torch.tensor(-GRAVITY)

    def flow(t, x, stance):
        z, v = x
        return torch.stack([v, stiffness * (_ONE - z) + fall if stance else fall])

    def guards(x, stance):
        z, v = x[:1], x[1:]
        return (_ONE - z, v > _ZERO) if stance else (z - _ONE, v < _ZERO)

    return _loop(
        flow,
        guards,
        lambda x, stance, i: (x, not stance),
        torch.stack([z0, _ZERO]),
        False,
        t1,
    )


def _legs(x0, t1):
    side = torch.tensor([HALF_WIDTH, -HALF_WIDTH])
    weight = torch.tensor([0.0, -GRAVITY, 0.0])
    inverse_mass = torch.tensor([1.0, 1.0, 1 / INERTIA])

    def feet(angle):
        cos, sin = torch.cos(angle), torch.sin(angle)
        return cos * side + sin * LEG_LENGTH, sin * side - cos * LEG_LENGTH

    def flow(t, x, contact):
        _, z, angle, vx, vz, omega = x
        rx, rz = feet(angle)
        fz = contact * (-STIFFNESS * (z + rz) - DAMPING * (vz + omega * rx))
        fx = contact * (-TANGENTIAL_DAMPING * (vx - omega * rz))
        force = torch.stack([fx, fz, rx * fz - rz * fx]).sum(1)
        return torch.cat([x[3:], force * inverse_mass + weight])

    def guards(x, contact):
        _, z, angle, _, vz, omega = x
        rx, rz = feet(angle)
        sign = 1 - 2 * contact
        return sign * (z + rz), sign * (vz + omega * rx) < _ZERO

    def jump(x, contact, i):
        contact = contact.clone()
        contact[i] = 1 - contact[i]
        return x, contact

    return _loop(flow, guards, jump, x0, torch.zeros(2), t1)


_KINDS = {
    "ball": (_ball, lambda x: x[0]),
    "balls": (_balls, lambda x: x[: x.numel() // 2].sum()),
    "hopper": (_hopper, lambda x: x[0]),
    "legs": (_legs, torch.sum),
}
