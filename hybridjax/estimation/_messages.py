"""What is said of estimations that failed."""

import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax.errors import Messages, Verdict
from ._problem import Given, Problem
from ._results import RESULTS, SUCCESS


def verdict_of(problem: Problem, results) -> Verdict:
    """`results` are those of the steps; each keeps the first that was no success."""
    failed = results != SUCCESS
    # A step may come after the last measurement.
    first = jnp.minimum(jnp.argmax(failed), problem.ts.shape[0] - 1)
    return Verdict(failed[-1], (results._value[-1], first, problem.ts[first]))


def last_of(results):
    return jtu.tree_map(lambda a: a[-1], results)


def messages(given: Given) -> Messages:
    bounds = {"max_steps": given.max_steps, "max_events": given.max_events}

    def failure(values):
        result, number, t = values
        text = RESULTS._index_to_message[int(result)]
        for name, bound in bounds.items():
            text = text.replace(f"`{name}`", f"`{name}`, which is {bound}")
        return (
            f"{text}\nBefore time {float(t):.12g}, that of measurement {int(number)}."
        )

    return Messages(failure)
