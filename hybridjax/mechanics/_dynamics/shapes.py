from collections.abc import Callable, Mapping

import jax


def check_shapes(
    checks: Mapping[str, tuple[Callable, list[tuple[int, ...]]]], because: str
):
    """Checks what functions return: by name, the call and the shapes that will do.

    **Raises:**

    - `ValueError` that names the argument.
    """
    for name, (fn, shapes) in checks.items():
        got = jax.eval_shape(fn)
        if not hasattr(got, "shape") or got.shape not in shapes:
            raise ValueError(
                f"Argument `{name}` must return an array of shape "
                f"{' or '.join(map(str, shapes))}, as {because}, but it returned {got}."
            )
