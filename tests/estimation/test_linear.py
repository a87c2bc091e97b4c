"""Problems in which the filter and the smoother are exact: linear flows, with an event
whose time is linear in the state, a reset that may be singular, and one at a known
time; against the posterior of all noise at once, and against a textbook's smoother."""

import functools

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import multivariate_normal


FALL, SLIDE = np.array([1.0, -1.0, 0.5]), np.array([0.5, 0.3, -1.0])
NORMAL = np.array([0.0, 1.0, -0.2])
SWING = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.5], [0.0, -0.5, -0.2]])
TURN = np.array([[0.9, 0.1, 0.0], [-0.2, 0.8, 0.3], [0.1, 0.0, 1.1]])
TIMES = np.array([0.1, 0.25, 0.5, 0.7, 0.8, 1.1, 1.3, 1.3, 1.6])
SWITCH, HIT = 1.2, 0.6
H = {
    "fall": np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]),
    "slide": np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 1.0]]),
    "swing": np.array([[1.0, 0.0, 0.0], [0.3, 1.0, 0.0]]),
}
MEAN0 = np.array([0.2, 0.7, 0.5])
ROOT0 = 0.02 * np.array([[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 1.2]])
NOISE = np.array([[0.03, 0.0], [0.01, 0.02]])
PROCESS = np.array([[0.02, 0.0], [0.0, 0.03], [0.01, 0.01]])
# White noise on the way, in one direction of three. What it adds does not depend on the
# time of the hit, if in the slide it is what the hit makes of it: so all is linear.
DIFFUSION = np.array([[0.02], [0.01], [-0.03]])
# Of the third coordinate nothing is left, or half.
LAND = {
    "singular": np.array([[0.9, 0.2, 0.0], [0.0, -0.5, 0.1], [0.0, 0.0, 0.0]]),
    "regular": np.array([[0.9, 0.2, 0.0], [0.0, -0.5, 0.1], [0.3, 0.0, 0.5]]),
}


def system():
    hit = lambda t, x, args: jnp.asarray(NORMAL) @ x
    land = lambda t, x, args: args["land"] @ x
    turn = lambda t, x, args: jnp.asarray(TURN) @ x
    return hj.HybridAutomaton(
        modes={
            "fall": lambda t, x, args: jnp.asarray(FALL),
            "slide": lambda t, x, args: jnp.asarray(SLIDE),
            "swing": lambda t, x, args: jnp.asarray(SWING) @ x,
        },
        transitions=[
            hj.Transition("fall", "slide", hit, land),
            hj.Transition("slide", "swing", lambda t, x, args: SWITCH - t, turn),
        ],
    )


@functools.cache
def program():
    measurement = {
        name: lambda t, x, args, matrix=matrix: jnp.asarray(matrix) @ x
        for name, matrix in H.items()
    }

    def run(args, ys):
        filtered = hj.estimation.kalman_filter(
            system(),
            0.0,
            TIMES,
            ys,
            jnp.asarray(MEAN0),
            args["start"] * ROOT0,
            "fall",
            args,
            measurement=measurement,
            measurement_root=lambda t, x, mode, args: args["sensor"] * NOISE,
            process_root=lambda t, x, mode, args: args["process"] * PROCESS,
            diffusion=lambda t, x, mode, args: (
                args["diffusion"] * jnp.stack(dispersions(args["land"], jnp))[mode]
            ),
            throw=False,
        )
        smoothed = hj.estimation.kalman_smoother(filtered)
        aims = jnp.sum(smoothed.xs) + jnp.sum(_square(smoothed.roots))
        return (filtered.log_likelihood, aims), (filtered, smoothed)

    def both(args, ys):
        run_ = lambda args: run(args, ys)
        _, pull, out = jax.vjp(run_, args, has_aux=True)
        return out, *jax.vmap(pull)((jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])))

    options = hj.compiler_options("fast_to_compile")
    return jax.jit(jax.vmap(both, (0, None)), compiler_options=options)


def _square(root):
    return root @ root.swapaxes(-1, -2)


def hit_saltation(land, np=np):
    return land + np.outer(SLIDE - land @ FALL, NORMAL) / (NORMAL @ FALL)


def dispersions(land, np=np):
    """Of each mode."""
    return [DIFFUSION, hit_saltation(land, np) @ DIFFUSION, DIFFUSION]


#
# The same problem as one vector of normal variables
#


def affine(fn):
    """The matrix of an affine function, and its constant."""
    constant = fn(np.zeros(3))
    return np.stack([fn(e) - constant for e in np.eye(3)], axis=1), constant


def flow(mode, x, h):
    if mode == "swing":
        return expm(h * SWING) @ x
    return x + h * {"fall": FALL, "slide": SLIDE}[mode]


def interval(t0, t1, land):
    """From one time to the next, and the mode then."""
    if t0 < HIT <= t1:

        def through(x):
            tau = -NORMAL @ x / (NORMAL @ FALL)
            return flow("slide", land @ flow("fall", x, tau), t1 - t0 - tau)

        return through, "slide"
    if t0 < SWITCH <= t1:
        on = lambda x: flow("swing", TURN @ flow("slide", x, SWITCH - t0), t1 - SWITCH)
        return on, "swing"
    mode = "fall" if t1 < HIT else "slide" if t1 < SWITCH else "swing"
    return lambda x: flow(mode, x, t1 - t0), mode


def diffused(mode, h, land):
    """The matrix of the flow, and the covariance that white noise adds (Van Loan)."""
    A = SWING if mode == "swing" else np.zeros((3, 3))
    L = dispersions(land)[list(H).index(mode)]
    both = expm(h * np.block([[-A, L @ L.T], [np.zeros((3, 3)), A.T]]))
    matrix = both[3:, 3:].T
    return matrix, matrix @ both[:3, 3:]


def spread(t0, t1, land):
    """A root of the covariance that white noise adds in an interval."""
    P, mode = np.zeros((3, 3)), interval(t0, t0, land)[1]
    for time, event in ((HIT, hit_saltation(land)), (SWITCH, TURN), (t1, np.eye(3))):
        if t0 < time <= t1:
            matrix, added = diffused(mode, time - t0, land)
            P = event @ (matrix @ P @ matrix.T + added) @ event.T
            t0, mode = time, interval(time, time, land)[1]
    values, vectors = np.linalg.eigh(P)
    return vectors * np.sqrt(np.maximum(values, 0))


def dense(args, ys):
    """States as affine functions of standard normal variables, given what was measured:
    log-likelihood, and mean and covariance of the state at each time, given the
    measurements until then, and all."""
    k, size = len(TIMES), 3 + 5 * len(TIMES)
    A, a = np.zeros((3, size)), MEAN0
    A[:, :3] = args["start"] * ROOT0
    states, C, c = [], [], []
    times = np.concatenate([[0.0], TIMES])
    for i, (t0, t1) in enumerate(zip(times[:-1], times[1:], strict=True)):
        A[:, 3 + 2 * i : 5 + 2 * i] += args["process"] * np.sqrt(t1 - t0) * PROCESS
        through, mode = interval(t0, t1, args["land"])
        M, m = affine(through)
        A, a = M @ A, M @ a + m
        white = 3 + 2 * k + 3 * i
        A[:, white : white + 3] += args["diffusion"] * spread(t0, t1, args["land"])
        states.append((A.copy(), a))
        C.append(H[mode] @ A)
        c.append(H[mode] @ a)
    C, c = np.concatenate(C), np.concatenate(c)
    R = np.kron(np.eye(k), args["sensor"] ** 2 * NOISE @ NOISE.T)
    seen = ~np.isnan(ys).ravel()
    y = ys.ravel()

    def given(until):
        rows = np.flatnonzero(seen[: 2 * until])
        V = C[rows] @ C[rows].T + R[np.ix_(rows, rows)]
        gain = C[rows].T @ np.linalg.inv(V)
        z = gain @ (y[rows] - c[rows])
        return z, np.eye(size) - gain @ C[rows]

    def state(i, until):
        z, P = given(until)
        A, a = states[i]
        return A @ z + a, A @ P @ A.T

    V = (C @ C.T + R)[np.ix_(seen, seen)]
    likelihood = multivariate_normal.logpdf(y[seen], c[seen], V)
    filtered = [state(i, i + 1) for i in range(k)]
    return likelihood, filtered, [state(i, k) for i in range(k)]


@functools.cache
def cases():
    rng = np.random.default_rng(3)
    # What was measured, and what was not.
    ys = np.array(dense_means(LAND["regular"])) + 0.02 * rng.normal(
        size=(len(TIMES), 2)
    )
    ys[1, 0], ys[3], ys[6, 1] = np.nan, np.nan, np.nan
    base = {"start": 1.0, "sensor": 1.0, "process": 1.0, "diffusion": 1.0}
    args = [base | {"land": land} for land in LAND.values()]
    args += [base | {"land": LAND["regular"], "process": 0.0, "diffusion": 0.0}]
    stacked = jax.tree.map(lambda *a: jnp.stack([jnp.asarray(b) for b in a]), *args)
    return ys, args, jax.tree.map(np.asarray, program()(stacked, ys))


def dense_means(land):
    x, out = MEAN0, []
    times = np.concatenate([[0.0], TIMES])
    for t0, t1 in zip(times[:-1], times[1:], strict=True):
        through, mode = interval(t0, t1, land)
        x = through(x)
        out.append(H[mode] @ x)
    return out


@pytest.mark.parametrize("case", range(3))
def test_as_all_at_once(case):
    ys, args, ((filtered, smoothed), *_) = cases()
    likelihood, before, after = dense(args[case], ys)
    np.testing.assert_allclose(filtered.log_likelihood[case], likelihood, rtol=1e-8)
    for got, expected in ((filtered, before), (smoothed, after)):
        means, covariances = map(np.array, zip(*expected, strict=True))
        np.testing.assert_allclose(got.xs[case], means, atol=1e-8)
        covariance = _square(got.roots[case])
        np.testing.assert_allclose(covariance, covariances, atol=1e-10)
    # The case is singular where it is meant to be.
    ranks = [np.linalg.matrix_rank(P, tol=1e-9) for _, P in before]
    assert min(ranks) == (2 if case == 0 else 3)
    assert np.all(np.isnan(ys).sum(axis=1) == 2 - filtered.measured[case])


def test_textbook_smoother():
    # Rauch, Tung and Striebel, which inverts predicted covariances.
    ys, args, ((filtered, smoothed), *_) = cases()
    case = 1
    P = _square(filtered.roots[case])
    predicted = _square(filtered.predicted_roots[case])
    xs, Ps = [filtered.xs[case][-1]], [P[-1]]
    for i in reversed(range(len(TIMES) - 1)):
        M, _ = affine(interval(TIMES[i], TIMES[i + 1], args[case]["land"])[0])
        gain = P[i] @ M.T @ np.linalg.inv(predicted[i + 1])
        xs.append(
            filtered.xs[case][i] + gain @ (xs[-1] - filtered.predicted_xs[case][i + 1])
        )
        Ps.append(P[i] + gain @ (Ps[-1] - predicted[i + 1]) @ gain.T)
    np.testing.assert_allclose(smoothed.xs[case], xs[::-1], atol=1e-8)
    np.testing.assert_allclose(_square(smoothed.roots[case]), Ps[::-1], atol=1e-9)


@pytest.mark.parametrize("case", range(2))
def test_gradients(case):
    # Of the likelihood, and of the smoothed states and covariances, with respect to a
    # singular reset and the noise, against differences of the formula.
    ys, args, (_, gradients) = cases()

    def value(args):
        likelihood, _, after = dense(args, ys)
        sums = [np.sum(mean) + np.sum(P) for mean, P in after]
        return np.array([likelihood, np.sum(sums)])

    for name, given in args[case].items():
        for index in np.ndindex(np.shape(given)):
            step = np.zeros(np.shape(given))
            step[index] = 1e-5
            up, down = ({**args[case], name: given + s * step} for s in (1, -1))
            slope = (value(up) - value(down)) / 2e-5
            for got, expected in zip(gradients[name][case], slope, strict=True):
                assert abs(got[index] - expected) < 1e-5 * max(1, abs(expected)), name
