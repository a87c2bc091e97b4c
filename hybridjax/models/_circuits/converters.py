"""Converters of a direct voltage by a switch, an inductor and a capacitor."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..._systems.clock import Clock
from ..._systems.parameter import parameter
from ..._systems.sampled_data import SampledDataSystem


def buck_converter(
    duty: Callable | ArrayLike,
    voltage: ArrayLike = 24.0,
    inductance: ArrayLike = 1e-4,
    capacitance: ArrayLike = 1e-4,
    load: ArrayLike = 5.0,
    period: ArrayLike = 2e-5,
    phase: ArrayLike = 0.0,
    z0: PyTree = None,
) -> SampledDataSystem:
    r"""A step-down converter, switched by pulse-width modulation.

    $$L \dot\imath = s V - v, \qquad C \dot v = i - v / R, \qquad
    s = 1 \text{ from } \varphi + k T \text{ to } \varphi + (k + d) T.$$

    In a steady state $v$ is about $d V$. There is no diode: the current may reverse.

    **Arguments:**

    - `duty`: $d$, from 0 to 1: a number, or a controller `(t, x, z, args) -> (z, d)` as
        of `hj.SampledDataSystem`, called where a period begins.
    - `voltage`: $V$, in V.
    - `inductance`: $L$, in H.
    - `capacitance`: $C$, in F.
    - `load`: $R$, in Ω.
    - `period`: $T$, in s.
    - `phase`: $\varphi$, in s: when the first period begins.
    - `z0`: initial state of the controller.

    **Returns:**

    A `hj.SampledDataSystem`, whose plant has the state $(i, v)$, in A and V,
    of shape `(2,)`.

    ??? cite "Reference"

        Erickson, Maksimović, *Fundamentals of power electronics*, Chapter 2.
    """
    values = (voltage, inductance, capacitance, load)
    return _modulated(False, values, duty, Clock(period, phase), z0)


def boost_converter(
    duty: Callable | ArrayLike,
    voltage: ArrayLike = 12.0,
    inductance: ArrayLike = 1e-4,
    capacitance: ArrayLike = 1e-4,
    load: ArrayLike = 20.0,
    period: ArrayLike = 2e-5,
    phase: ArrayLike = 0.0,
    z0: PyTree = None,
) -> SampledDataSystem:
    r"""A step-up converter, switched by pulse-width modulation.

    $$L \dot\imath = V - (1 - s) v, \qquad C \dot v = (1 - s) i - v / R.$$

    In a steady state $v$ is about $V / (1 - d)$. Arguments, state and source are those
    of `hj.models.buck_converter`.
    """
    values = (voltage, inductance, capacitance, load)
    return _modulated(True, values, duty, Clock(period, phase), z0)


class _Converter(eqx.Module):
    voltage: Float[Array, ""]
    inductance: Float[Array, ""]
    capacitance: Float[Array, ""]
    load: Float[Array, ""]
    boosts: bool = eqx.field(static=True)

    def __call__(self, t, x, switch, args):
        i, v = x[0], x[1]
        across = self.voltage - (1 - switch) * v
        into = (1 - switch) * i
        if not self.boosts:
            across, into = switch * self.voltage - v, i
        rates = across / self.inductance, (into - v / self.load) / self.capacitance
        return jnp.stack(rates).astype(x.dtype)


class _Constant(eqx.Module):
    duty: Float[Array, ""]

    def __call__(self, t, x, z, args):
        return z, self.duty


def _modulated(boosts: bool, values, duty, clock: Clock, z0) -> SampledDataSystem:
    plant = _Converter(*map(parameter, values), boosts=boosts)
    controller = duty if callable(duty) else _Constant(parameter(duty))
    return SampledDataSystem(plant, controller, clock, z0, hold="pulse_width")
