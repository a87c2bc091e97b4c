"""Clocks: increasing sequences of times, known beforehand."""

import abc

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._jax.tracing import is_traced
from .parameter import in_dtype, parameter
from .system import UNWATCHED


# Times of different clocks that differ by less than so many eps are the same: products
# of a number and a period, which is rounded itself.
_SAME_TICK = 8


class AbstractClock(eqx.Module):
    """A sequence of times; its ticks are numbered from zero."""

    @abc.abstractmethod
    def first(self, t: Float[Array, ""]) -> Int[Array, ""]:
        """The number of the first tick that is not before `t`, up to rounding."""

    @abc.abstractmethod
    def time(self, k: Array, dtype) -> Float[Array, "..."]:
        """When tick `k` comes; infinite if there is none."""


class Clock(AbstractClock):
    r"""A clock that ticks at the times $\varphi + k T$, $k = 0, 1, 2, \dots$

    For `hj.with_clocks` and `hj.SampledDataSystem`. Times are
    computed from $k$, an integer in the mode, so that rounding does not accumulate;
    they are differentiable with respect to both arguments.

    **Arguments:**

    - `period`: $T > 0$, a number, in the system's unit of time.
    - `phase`: $\varphi$, the time of the first tick, a number. Ticks before the start
        of a simulation are skipped; one at the start happens. Ticks are counted from
        here, as integers of 32 bits: where times are large, begin near them.

    **Raises:**

    - `ValueError` if they are not numbers, or the period is not positive and finite.
    """

    period: Float[Array, ""] = eqx.field(converter=parameter)
    phase: Float[Array, ""] = eqx.field(converter=parameter, default=0.0)

    def __check_init__(self):
        for name, value in (("period", self.period), ("phase", self.phase)):
            if value.shape != ():
                raise ValueError(
                    f"Argument `{name}` of `hj.Clock` must be a number, but its shape "
                    f"is {value.shape}. Times in a table are `hj.PresetTimes`; several "
                    "clocks are several `hj.Clock`s."
                )
        if not is_traced(self.period) and not 0 < self.period < np.inf:
            raise ValueError(
                "Argument `period` of `hj.Clock` must be positive and finite, but it "
                f"is {self.period}."
            )

    def first(self, t):
        period, phase = in_dtype((self.period, self.phase), t.dtype)
        slack = _slack(t, phase)
        count = jnp.ceil((t - phase - slack) / period)
        return jnp.maximum(lax.stop_gradient(count), 0).astype(jnp.int32)

    def time(self, k, dtype):
        period, phase = in_dtype((self.period, self.phase), dtype)
        return phase + k.astype(dtype) * period


class PresetTimes(AbstractClock):
    """A clock that ticks at given times.

    For `hj.with_clocks` and `hj.SampledDataSystem`;
    differentiable with respect to the times.

    **Arguments:**

    - `times`: in ascending order, of shape `(n,)`, in the system's unit of time. Those
        before the start of a simulation are skipped; one at the start happens.

    **Raises:**

    - `ValueError` if they are no such vector.
    """

    times: Float[Array, " n"] = eqx.field(converter=parameter)

    def __check_init__(self):
        if self.times.ndim != 1 or self.times.size == 0:
            raise ValueError(
                "Argument `times` of `hj.PresetTimes` must be a vector of one time or "
                f"more, but its shape is {self.times.shape}."
            )
        if not is_traced(self.times) and not np.all(np.diff(self.times) >= 0):
            raise ValueError(
                "Argument `times` of `hj.PresetTimes` must be in ascending order, but "
                f"it is {self.times}. Sort it."
            )

    def first(self, t):
        times = lax.stop_gradient(in_dtype(self.times, t.dtype))
        return jnp.sum(times < t - _slack(t, times), dtype=jnp.int32)

    def time(self, k, dtype):
        times = in_dtype(self.times, dtype)
        last = times.size - 1
        return jnp.where(k <= last, times[jnp.minimum(k, last)], jnp.inf)


def _slack(a, b):
    eps = jnp.finfo(a.dtype).eps
    return _SAME_TICK * eps * jnp.maximum(jnp.abs(a), jnp.abs(b))


def together(time: Float[Array, ""], *others: Float[Array, ""]) -> Float[Array, ""]:
    """A time, as one of the others if it is the same up to rounding: so that the order
    of ticks that coincide is that of their guards, and not a matter of rounding. The
    derivative is its own."""
    for other in others:
        same = jnp.abs(time - other) <= _slack(time, other)
        # What never comes is nowhere.
        same = same & jnp.isfinite(time) & jnp.isfinite(other)
        time = time + jnp.where(same, lax.stop_gradient(other - time), 0)
    return time


def until(time: Float[Array, "..."], t: Float[Array, ""]) -> Float[Array, "..."]:
    """The guard of a time: what is left until then."""
    return jnp.where(time == jnp.inf, UNWATCHED, time - t)
