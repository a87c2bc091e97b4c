"""The bouncing ball in closed form, and its derivatives by complex steps."""

import numpy as np


def ball(q0, v0, gravity, restitution, t1):
    r"""Height and speed of a bouncing ball at `t1`, elementwise.

    The first impact is at $t_1 = (v_0 + u) / g$ with the speed
    $u = \sqrt{v_0^2 + 2 g q_0}$, and flight $k$ takes $2 e^k u / g$. All of it is
    analytic between impacts, so complex arguments carry derivatives.
    """
    q0, v0, g, e = np.broadcast_arrays(
        *(np.asarray(a, complex) for a in (q0, v0, gravity, restitution))
    )
    u = np.sqrt(v0**2 + 2 * g * q0)
    impact = (v0 + u) / g
    q = q0 + v0 * t1 - g * t1**2 / 2
    v = v0 - g * t1
    while np.any(bounced := impact.real < t1):
        u = e * u
        s = t1 - impact
        q = np.where(bounced, u * s - g * s**2 / 2, q)
        v = np.where(bounced, u - g * s, v)
        impact = impact + 2 * u / g
    return q, v


def _ball_of(theta, t1):
    q0, v0, gravity, restitution = np.moveaxis(theta, -1, 0)
    return ball(q0, v0, gravity, restitution, t1)


def ball_and_gradient(theta, t1):
    """The final states and the gradients of the final heights.

    **Arguments:**

    - `theta`: shape `(..., 4)`: height, speed, gravity, restitution.

    **Returns:**

    Arrays of shape `(..., 2)` and `(..., 4)`.
    """
    theta = np.asarray(theta, float)
    q, v = _ball_of(theta, t1)
    tiny = 1e-30  # Complex steps do not cancel: the smaller, the better.
    steps = theta + 1j * tiny * np.eye(4)[(slice(None),) + (None,) * (theta.ndim - 1)]
    dq, _ = _ball_of(steps, t1)
    gradient = np.moveaxis(dq.imag / tiny, 0, -1)
    return np.stack([q.real, v.real], axis=-1), gradient
