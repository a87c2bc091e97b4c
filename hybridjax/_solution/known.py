from .._jax.tracing import is_traced


def check_known(method: str, count):
    """**Raises:**

    - `ValueError` if `count`, the number of events, is not that of one simulation that
        is done.
    """
    if is_traced(count):
        raise ValueError(
            f"`{method}` depends on the number of events, which is not known where a "
            "simulation is traced. Return the solution from `jax.jit`, `jax.vmap` or "
            f"`jax.grad`, and call `{method}` there."
        )
    if count.ndim > 0:
        raise ValueError(
            f"`{method}` is for one simulation, but these are several, of shape "
            f"{count.shape}. Take one of them first: "
            "`sol = jax.tree.map(lambda a: a[i], sol)`."
        )
