"""An error estimate for what a step of an explicit Runge-Kutta method takes back."""

import diffrax as dfx
import numpy as np
from jaxtyping import Float


def adjoint_estimate(
    tableau: dfx.ButcherTableau,
) -> tuple[Float[np.ndarray, " s"], float]:
    """Weights for the cotangents `d_i` that come back through the stages, so that their
    sum is an estimate of the error; and its order in the step length, over that of the
    embedded estimate for the state.

    With the step, a cotangent `ct` becomes the sum of `ct` and all

        d_i = h J_i' (b_i ct + sum_j a_ji d_j),

    which is itself a Runge-Kutta method for the adjoint equation. With these weights
    the terms of low order in `h` cancel. The first that does not is of such a size that
    where J is constant the state's estimate is the same, but for the order.
    """
    size = int(np.flatnonzero(tableau.b_sol)[-1]) + 1
    whole = np.zeros((len(tableau.c) + 1,) * 2)
    for i, row in enumerate(tableau.a_lower):
        whole[i + 1, : i + 1] = row
    a, b = whole[:size, :size], np.asarray(tableau.b_sol[:size])
    c = np.sum(a, axis=1)
    later, delay = a.T @ b, 1 - c  # cotangents meet the stages in reversed order
    # The coefficients of J J' ... in each `d_i`, with a dot for derivatives in time,
    # order by order; the last one is due to the error of the stages themselves.
    stage_error = b * (a @ c - c**2 / 2)
    conditions = [
        [b],
        [b * delay, later],
        [b * delay**2, delay * later, a.T @ (b * delay), a.T @ later, stage_error],
    ]
    power, kernel, order = b, np.eye(len(b)), 1
    for order_conditions in conditions:
        rows = np.array(order_conditions) @ kernel
        _, sizes, basis = np.linalg.svd(rows)
        rank = int(np.sum(sizes > 1e-10))
        smaller = kernel @ basis[rank:].T
        if np.linalg.norm((a.T @ power) @ smaller) < 1e-6:
            break
        power, kernel, order = a.T @ power, smaller, order + 1
    slopes, embedded_order = np.ones(len(whole)), 1
    while abs(tableau.b_error @ slopes) < 1e-10:
        slopes, embedded_order = whole @ slopes, embedded_order + 1
    ratio = order / embedded_order
    response = kernel.T @ power
    size = abs(tableau.b_error @ slopes) ** ratio
    return size * kernel @ response / (response @ response), ratio
