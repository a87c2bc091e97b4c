"""The loop that a careful diffrax user writes for a bouncing ball, as a peer.

`diffeqsolve` runs to the next impact (`Event` with a root finder), the ball is reset,
and the two repeat inside a bounded loop. diffrax differentiates a solve either forward
(`ForwardMode`) or in reverse (`RecursiveCheckpointAdjoint`), not both in one call, so
the loop is written for one of the two.
"""

from typing import Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float


Kind = Literal["forward", "reverse"]


def ball_flow(t, x, args):
    del t
    gravity, _ = args
    q, v = jnp.split(x, 2)
    return jnp.concatenate([v, jnp.full_like(q, -gravity)])


def _guard(t, y, args, **kwargs):
    # The least height of the balls that fall. A rising ball is left out, and so is one
    # that stands at rest: otherwise a ball that has just bounced, whose height is zero
    # to rounding, hides the others from the sign test for the whole next step.
    del t, args, kwargs
    q, v = jnp.split(y, 2)
    return jnp.min(jnp.where(v < 0, q, 1.0))


def _bounce(x, args):
    _, restitution = args
    q, v = jnp.split(x, 2)
    hit = jnp.argmin(jnp.where(v < 0, q, jnp.inf))
    return jnp.concatenate([q, v.at[hit].multiply(-restitution)])


class DiffraxBalls(eqx.Module):
    """Bouncing balls by a loop around `diffrax.diffeqsolve`.

    The state holds the heights, then the speeds, and `args = (gravity, restitution)`.

    **Arguments:**

    - `kind`: which derivatives are wanted; the values are the same.
    - `root_finder`: Newton is right (and fastest) for one ball, whose fall is concave,
        and wrong for the minimum over several: use bisection there.
    - `max_arcs`: bound on the number of solves, one more than that of impacts.
    - `max_steps`, `checkpoints`: per solve. As many checkpoints as steps avoid all
        recomputation: measured to be fastest, and bounds of 8 to be no faster.
    """

    kind: Kind = eqx.field(static=True)
    root_finder: optx.AbstractRootFinder
    max_arcs: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True, default=16)
    checkpoints: int = eqx.field(static=True, default=16)

    def __call__(
        self,
        t0,
        t1,
        x0: Float[Array, " two_n"],
        args,
        rtol=1e-8,
        atol=1e-8,
        flow=ball_flow,
    ) -> Float[Array, " two_n"]:
        if self.kind == "forward":
            adjoint = diffrax.ForwardMode()
        else:
            adjoint = diffrax.RecursiveCheckpointAdjoint(self.checkpoints)
        event = diffrax.Event(_guard, self.root_finder, direction=False)
        controller = diffrax.PIDController(rtol=rtol, atol=atol)

        def unfinished(carry):
            t, _ = carry
            return t < t1

        def arc(carry):
            t, x = carry
            sol = diffrax.diffeqsolve(
                diffrax.ODETerm(flow),
                diffrax.Tsit5(),
                t,
                t1,
                None,
                x,
                args,
                stepsize_controller=controller,
                event=event,
                adjoint=adjoint,
                max_steps=self.max_steps,
                throw=False,
            )
            assert sol.ts is not None and sol.ys is not None
            assert sol.event_mask is not None
            t, x = sol.ts[-1], sol.ys[-1]
            return t, jnp.where(sol.event_mask, _bounce(x, args), x)

        carry = (jnp.asarray(t0, x0.dtype), x0)
        if self.kind == "forward":
            _, x1 = eqxi.while_loop(
                unfinished, arc, carry, max_steps=self.max_arcs, kind="lax"
            )
        else:
            _, x1 = eqxi.while_loop(
                unfinished,
                arc,
                carry,
                max_steps=self.max_arcs,
                kind="checkpointed",
                checkpoints=self.max_arcs,
            )
        return x1


def one_ball(kind: Kind, max_impacts: int) -> DiffraxBalls:
    return DiffraxBalls(kind, optx.Newton(rtol=1e-8, atol=1e-8), max_impacts + 1)


def many_balls(kind: Kind, max_impacts: int) -> DiffraxBalls:
    # Bisection stops at its tolerance, where Newton lands at rounding: two digits more
    # keep the impact times as exact as the steps.
    return DiffraxBalls(kind, optx.Bisection(rtol=1e-10, atol=1e-10), max_impacts + 1)
