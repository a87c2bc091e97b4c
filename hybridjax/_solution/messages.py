"""What is said of simulations that failed."""

from .._jax.errors import Messages
from .._loop.results import RESULTS
from .._systems.system import names_of


def messages(system, bounds: dict[str, int]) -> Messages:
    """`bounds` are those that were given, by the names of the arguments."""

    def failure(values):
        result, t, mode, guard, (begin, end) = values
        names = names_of(system)
        text = RESULTS._index_to_message[int(result)]
        for name, bound in bounds.items():
            text = text.replace(f"`{name}`", f"`{name}`, which is {bound}")
        share = (float(t) - float(begin)) / max(float(end) - float(begin), 1e-300)
        where = f"At time {float(t):.12g}, after {100 * share:.3g} % of the interval"
        where += f", in mode {names.mode_in_message(mode)}"
        if int(guard) >= 0:
            where += f", at {names.guard_in_message(int(guard))}"
        return f"{text}\n{where}."

    return Messages(failure, _NO_DERIVATIVE, _NO_SECOND)


_NO_DERIVATIVE = (
    "The derivative of this simulation does not exist: either the outcome of several "
    "events in one instant depends on their order, so that the flow is discontinuous "
    "there (`hj.b_derivative` tells), or a guard comes to rest where it fires. "
    "Perturb the inputs, or pass `throw=False` to get NaN instead."
)
_NO_SECOND = (
    "The second derivative of this simulation does not exist: several events fall into "
    "one instant, or one happens at `t0`, where the first derivative has a kink. "
    "Perturb the inputs, or pass `throw=False` to get NaN instead."
)
