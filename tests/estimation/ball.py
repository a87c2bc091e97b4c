"""A ball that bounces, in closed form: its flow, and a Kalman filter of it."""

import numpy as np


def drift(h):
    """The derivative of a parabola after a time."""
    return np.array([[1.0, h], [0.0, 1.0]])


def flow(x, h, gravity):
    """`h` is a number, or has a last axis of length one."""
    q, v = x[..., :1], x[..., 1:]
    return np.concatenate([q + h * v - gravity * h**2 / 2, v - gravity * h], axis=-1)


def impact_time(x, gravity):
    """How long until the parabola falls through the ground; negative if it has."""
    fall = np.sqrt(np.maximum(x[..., 1] ** 2 + 2 * gravity * x[..., 0], 0))
    return (x[..., 1] + fall) / gravity


def through(x, gravity, restitution, saltation=True):
    """The ball at the same time, after the impact of this parabola; and the derivative
    of that."""
    tau = impact_time(x, gravity)
    q, v = flow(x, tau, gravity)
    after = np.array([q, -restitution * v])
    jump = np.diag([1.0, -restitution])
    if saltation:
        F = np.array([v, -gravity])
        change = np.array([after[1], -gravity]) - jump @ F
        jump = jump + np.outer(change, [1.0, 0.0]) / v
    return flow(after, -tau, gravity), drift(-tau) @ jump @ drift(tau)


def predict(x, h, gravity, restitution, saltation=True):
    """The ball after a time, the derivative of that, and the covariance that white
    noise in the acceleration, of unit density, has added."""
    matrix, noise = np.eye(2), np.zeros((2, 2))

    def fly(x, h):
        added = np.array([[h**3 / 3, h**2 / 2], [h**2 / 2, h]])
        noise_ = drift(h) @ noise @ drift(h).T + added
        return flow(x, h, gravity), drift(h) @ matrix, noise_

    while 0 < impact_time(x, gravity) <= h and x[0] > 0:
        tau = impact_time(x, gravity)
        x, matrix, noise = fly(x, tau)
        x, jump = through(x, gravity, restitution, saltation)
        matrix, noise = jump @ matrix, jump @ noise @ jump.T
        # On the ground, exactly.
        x[0], h = 0.0, h - tau
        rest = min(h, x[1] / gravity)
        x, matrix, noise = fly(x, rest)
        h = h - rest
    return fly(x, h)


def advance(x, h, gravity, restitution):
    """Many balls after a time in which each bounces once at most; and which did. Those
    that begin below the ground have bounced before, if they fall."""
    tau = impact_time(x, gravity)[:, None]
    fall = np.sqrt(np.maximum(x[:, 1] ** 2 + 2 * gravity * x[:, 0], 0))[:, None]
    up = np.concatenate([0 * fall, restitution * fall], axis=1)
    below = x[:, 0] <= 0
    hit = (tau[:, 0] <= h) & ~(below & (x[:, 1] > 0))
    return np.where(hit[:, None], flow(up, h - tau, gravity), flow(x, h, gravity)), hit


def kalman_filter(x, P, ts, ys, variance, process, gravity, restitution, diffusion=0.0):
    """Of its height, by the textbook: means and covariances, the log-likelihood, and
    whether a measurement led below the ground."""
    xs, Ps, likelihood, rewound, t0 = [], [], 0.0, [], 0.0
    for t, y in zip(ts, ys, strict=True):
        P = P + (t - t0) * process * np.eye(2)
        x, matrix, noise = predict(x, t - t0, gravity, restitution)
        P, t0 = matrix @ P @ matrix.T + diffusion**2 * noise, t
        if not np.isnan(y):
            V = P[0, 0] + variance
            likelihood -= ((y - x[0]) ** 2 / V + np.log(2 * np.pi * V)) / 2
            gain = P[:, 0] / V
            x, P = x + gain * (y - x[0]), P - np.outer(gain, P[0])
        rewound.append(x[0] < 0 and x[1] < 0)
        if rewound[-1]:
            x, matrix = through(x, gravity, restitution)
            P = matrix @ P @ matrix.T
        xs.append(x)
        Ps.append(P)
    return np.array(xs), np.array(Ps), likelihood, np.array(rewound)
