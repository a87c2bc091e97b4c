"""Spiking neurons, beside a closed form and the adjoint equations of Wunderlich and
Pehle, in NumPy."""

from typing import NamedTuple

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models

from ..helpers import error


# So many that their weights are a large parameter, which the replay sets apart.
N = 36
T1, MAX_SPIKES = 0.12, 256


class Parameters(NamedTuple):
    x0: np.ndarray
    weights: np.ndarray
    drive: np.ndarray
    membrane_time: np.ndarray
    synaptic_time: np.ndarray
    threshold: np.ndarray
    reset: np.ndarray


class Spike(NamedTuple):
    t: float
    neuron: int
    rate: float  # of its voltage before
    rate_after: float
    since: float  # the time of flow before it


def _decays(p: Parameters, h):
    """Over a time `h`: how voltages and currents decay, and what a current adds to the
    voltage."""
    v, u = np.exp(-h / p.membrane_time), np.exp(-h / p.synaptic_time)
    share = p.synaptic_time / (p.synaptic_time - p.membrane_time)
    return v, u, share * (u - v)


def _flow(p: Parameters, x, h):
    v, u, both = _decays(p, h)
    return np.stack([p.drive + (x[0] - p.drive) * v + both * x[1], u * x[1]])


def _next_spike(p: Parameters, x, horizon):
    """When, and which neuron: by bisection where its voltage, a sum of two
    exponentials, is monotone."""
    tm, ts = p.membrane_time, p.synaptic_time
    slow = x[1] * ts / (ts - tm)
    ratio = -slow * tm / ((x[0] - p.drive - slow) * ts)
    peak = np.log(np.where(ratio > 0, ratio, 1)) / (1 / ts - 1 / tm)
    peak = np.clip(peak, 0, horizon)
    at_peak, at_end = _flow(p, x, peak)[0], _flow(p, x, np.full(N, horizon))[0]
    early = at_peak > p.threshold
    lower, upper = np.where(early, 0, peak), np.where(early, peak, horizon)
    fires = early | (at_end > p.threshold)
    for _ in range(60):
        middle = (lower + upper) / 2
        above = _flow(p, x, middle)[0] > p.threshold
        lower, upper = np.where(above, lower, middle), np.where(above, middle, upper)
    after = np.where(fires, upper, np.inf)
    return after.min(), int(after.argmin())


def closed_form(p: Parameters) -> tuple[list[Spike], np.ndarray]:
    """The spikes, and the final state."""
    t, x, spikes = 0.0, p.x0, []
    rate = lambda x: (p.drive - x[0] + x[1]) / p.membrane_time
    while True:
        h, i = _next_spike(p, x, T1 - t)
        if not np.isfinite(h):
            return spikes, _flow(p, x, T1 - t)
        x = _flow(p, x, h)
        before = rate(x)[i]
        x[0, i] = p.reset[i]
        x[1] += p.weights[i]
        t += h
        spikes.append(Spike(t, i, before, rate(x)[i], h))


def adjoint(p: Parameters, spikes: list[Spike], ct_times, ct_x1) -> Parameters:
    """The gradient of what has these cotangents with respect to the times of spikes and
    the final state; that with respect to the time constants is left out."""
    v, u = ct_x1
    out = Parameters(*map(np.zeros_like, p))
    drive = out.drive

    def back(v, u, h):
        decay_v, decay_u, both = _decays(p, h)
        return decay_v * v, both * v + decay_u * u, drive + (1 - decay_v) * v

    v, u, drive = back(v, u, T1 - (spikes[-1].t if spikes else 0))
    history = reversed(list(zip(ct_times[: len(spikes)], spikes, strict=True)))
    for ct, (_, i, rate, rate_after, since) in history:
        w, others = p.weights[i], np.arange(N) != i
        ct_time = ct - v[i] * rate_after + np.sum(u * w / p.synaptic_time)
        ct_time -= np.sum((v * w / p.membrane_time)[others])
        out.weights[i] += u
        out.reset[i] += v[i]
        out.threshold[i] += ct_time / rate
        v = np.where(others, v, -ct_time / rate)
        v, u, drive = back(v, u, since)
    return out._replace(x0=np.stack([v, u]), drive=drive)


def _network(rng, drive, strength) -> Parameters:
    weights = strength * rng.normal(size=(N, N)) / np.sqrt(N)
    np.fill_diagonal(weights, 0)
    return Parameters(
        x0=np.stack([rng.uniform(0, 0.9, N), rng.uniform(0, 0.2, N)]),
        weights=weights,
        drive=drive * rng.uniform(1.1, 1.8, N),
        membrane_time=rng.uniform(0.015, 0.025, N),
        synaptic_time=rng.uniform(0.004, 0.008, N),
        threshold=rng.uniform(0.9, 1.1, N),
        reset=rng.uniform(-0.1, 0.1, N),
    )


def _simulated(p: Parameters):
    sol = hj.simulate(
        models.SpikingNetwork(*p[1:]),
        0.0,
        T1,
        p.x0,
        0,
        max_steps=4 * MAX_SPIKES,
        max_events=MAX_SPIKES,
    )
    valid = jnp.arange(MAX_SPIKES) < sol.events.count
    return (jnp.where(valid, sol.events.t, 0), sol.x1), sol.events.event


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_of_networks():
    # The drive of the first is too small for a spike; the weights of the others grow,
    # so that spikes move across steps.
    rng = np.random.default_rng(3)
    networks = [_network(rng, 0.4, 0)]
    for strength in (0.1, 0.4, 0.7, 1.0, 1.3):
        networks.append(_network(np.random.default_rng(4), 1.0, strength))
    batch = Parameters(*map(np.stack, zip(*networks, strict=True)))
    ct_times = rng.normal(size=(len(networks), MAX_SPIKES))
    cts = (ct_times, rng.normal(size=(len(networks), 2, N)))
    tangents = Parameters(*(rng.normal(size=leaf.shape) * leaf for leaf in batch))

    def derivatives(p, ct, dp):
        out, push, event = jax.linearize(_simulated, p, has_aux=True)
        return out, push(dp), jax.linear_transpose(push, p)(ct)[0], event

    program = jax.jit(jax.vmap(derivatives))
    (times, x1), pushed, pulled, events = program(batch, cts, tangents)
    counts = []
    for k, p in enumerate(networks):
        at = lambda tree, k=k: jax.tree.map(lambda leaf: np.asarray(leaf[k]), tree)
        spikes, x1_exact = closed_form(p)
        m = len(spikes)
        counts.append(m)
        assert events[k, :m].tolist() == [spike.neuron for spike in spikes]
        np.testing.assert_allclose(times[k, :m], [s.t for s in spikes], atol=1e-9)
        np.testing.assert_allclose(x1[k], x1_exact, atol=1e-7)
        assert not times[k, m:].any()

        expected = adjoint(p, spikes, *at(cts))
        got, dp = at(pulled), at(tangents)
        for name in ("x0", "weights", "drive", "threshold", "reset"):
            exact = getattr(expected, name)
            if exact.any():
                assert error(getattr(got, name), exact) < 1e-6, name
            else:
                assert not getattr(got, name).any(), name
        # Forward mode is the transpose, and the time constants by differences.
        inner = lambda a, b: sum(np.vdot(i, j) for i, j in zip(a, b, strict=True))
        forward = inner(at(cts), at(pushed))
        np.testing.assert_allclose(inner(got, dp), forward, rtol=1e-7)

        def outcome(h, p=p, dp=dp):
            spikes, x1 = closed_form(
                p._replace(
                    membrane_time=p.membrane_time + h * dp.membrane_time,
                    synaptic_time=p.synaptic_time + h * dp.synaptic_time,
                )
            )
            return np.array([spike.t for spike in spikes]), x1

        h = 1e-7
        difference = inner((ct_times[k, :m], cts[1][k]), outcome(h))
        difference -= inner((ct_times[k, :m], cts[1][k]), outcome(-h))
        along = inner(got[3:5], dp[3:5])
        np.testing.assert_allclose(along, difference / (2 * h), rtol=1e-4)

    assert counts[0] == 0 and min(counts[1:]) > 80 and len(set(counts)) > 3


def test_misuse():
    network = models.SpikingNetwork(np.zeros((3, 3)), 1.5)
    with pytest.raises(ValueError, match=r"shape \(2, n\).*\(3, 2\) and \(3, 3\)"):
        hj.simulate(network, 0.0, 0.1, jnp.zeros((3, 2)), 0)
