from jaxtyping import Array, Bool, Float


def fires_at_once(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"], tol
) -> Bool[Array, " n_guards"]:
    """Which guards fire here and now.

    Those that are in their guard set (`g <= 0`) and are not leaving it, and those that
    enter it within the time `tol`.
    """
    inside = (g <= 0) & (rate <= 0)
    about_to = (g > 0) & (rate < 0) & (g <= tol * -rate)
    return inside | about_to
