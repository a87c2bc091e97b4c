"""Mixtures of Gaussians: parts of one, narrower; and fewer in place of many. Mean and
covariance of a mixture stay what they are."""

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PyTree

from ..analysis._square_root import compress


# Standard deviations on each side of the mean in which there are parts; and how far
# apart these are, in their own. From there on, the sum has ripples.
_REACH, _APART = 2.5, 1.6
# What is in another mode is as if it was as far away, in squares of the standard
# deviation of all.
_OTHER_MODE = 10.0


def parts_of_normal(number: int):
    """A standard normal density as a sum of narrower ones, of equal width: their means,
    the logarithms of their weights, and that width."""
    if number == 1:
        return np.zeros(1), np.zeros(1), 1.0
    apart = 2 * _REACH / (number - 1)
    means = apart * (np.arange(number) - (number - 1) / 2)
    weights = np.exp(-(means**2) / 2)
    weights = weights / weights.sum()
    # In units of the standard deviation of the means.
    width = apart / _APART
    width = width / np.sqrt(1 + width**2)
    means = means * np.sqrt((1 - width**2) / (weights @ means**2))
    return means, np.log(weights), float(width)


def merge(
    log_weights: Float[Array, " many"], x, root, mode: PyTree, number: int
) -> tuple[Float[Array, " few"], tuple]:
    """Merges components, of which the weights sum to one and all states are finite,
    into `number` of them, each with what is near it. Where modes differ all the same,
    what is not in the mode of the heaviest is dropped."""
    weights = jnp.exp(log_weights)
    mean = weights @ x
    wide = _spread(log_weights, x - mean[None], root)
    # In units of all; a covariance that is singular has no width where nothing lies.
    points = jnp.matmul(x - mean[None], jnp.linalg.pinv(compress(wide)).T)

    def alike(i):
        same = jnp.ones(weights.shape, bool)
        for leaf in jtu.tree_leaves(mode):
            leaf = leaf.reshape(weights.size, -1)
            same &= jnp.all(leaf == leaf[i][None], axis=1)
        return same

    label = _clusters(*lax.stop_gradient((weights, points)), alike, number)

    def merged(cluster):
        own = jnp.where(label == cluster, log_weights, -jnp.inf)
        leader = jnp.argmax(own)
        own = jnp.where(alike(leader), own, -jnp.inf)
        exists = jnp.any(own > -jnp.inf)
        # A cluster of nothing is one of its points, without a weight.
        alone = jnp.where(jnp.arange(own.size) == leader, jnp.zeros_like(own), -jnp.inf)
        share = jnp.where(exists, own, alone)
        total = logsumexp(share)
        share = share - total
        mean = jnp.exp(share) @ x
        wide = _spread(share, x - mean[None], root)
        of_leader = jtu.tree_map(lambda m: m[leader], mode)
        total = jnp.where(exists, total, -jnp.inf)
        return total, (mean, compress(wide), of_leader)

    log_weights, components = jax.vmap(merged)(jnp.arange(number))
    return log_weights - logsumexp(log_weights), components


def _spread(log_weights, apart, root) -> Float[Array, "n k"]:
    """A root of the covariance of a mixture."""
    columns = jnp.concatenate([root, apart[:, :, None]], axis=2)
    half = jnp.exp(log_weights / 2)
    return jnp.moveaxis(half[:, None, None] * columns, 0, 1).reshape(root.shape[1], -1)


def _clusters(weights, points, alike, number: int) -> Int[Array, " many"]:
    """To which of `number` clusters each point belongs. The centre of the next one is
    what is worst off with those that there are."""

    def add(k, carry):
        distance, label = carry
        centre = jnp.argmax(weights * distance)
        apart = jnp.sum((points - points[centre][None]) ** 2, axis=1)
        apart = jnp.where(alike(centre), apart, _OTHER_MODE)
        nearer = apart < distance
        return jnp.minimum(apart, distance), jnp.where(nearer, k, label)

    distance = jnp.full_like(weights, jnp.finfo(weights.dtype).max)
    label = jnp.zeros(weights.shape, jnp.int32)
    return lax.fori_loop(0, number, add, (distance, label))[1]
