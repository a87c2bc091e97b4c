from jaxtyping import Array, Num


def diagonal(
    a: Num[Array, "rows columns"], n: int | None = None, column: int = 0
) -> Num[Array, " n"]:
    """The first `n` entries, or all, of the diagonal that begins in a column.

    Every so many numbers of them all: JAX's function adds up products with the
    identity, or looks them up, in a dozen operations.
    """
    rows, columns = a.shape
    step = columns + 1
    return a.reshape(-1)[column : column + (rows if n is None else n) * step : step]
