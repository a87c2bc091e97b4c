import jax
import jax.tree_util as jtu


def directional(fn, primals: tuple, tangents: tuple):
    """`jax.jvp` of `fn(*primals)` for tangents that are `None` where zero."""
    flat, treedef = jtu.tree_flatten(primals)
    flat_tangents = treedef.flatten_up_to(tangents)
    moving = [v is not None for v in flat_tangents]

    def of_moving(*values):
        values = iter(values)
        leaves = [
            next(values) if m else leaf for m, leaf in zip(moving, flat, strict=True)
        ]
        return fn(*jtu.tree_unflatten(treedef, leaves))

    p = [leaf for m, leaf in zip(moving, flat, strict=True) if m]
    v = [tangent for m, tangent in zip(moving, flat_tangents, strict=True) if m]
    return jax.jvp(of_moving, p, v)
