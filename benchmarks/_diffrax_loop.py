"""The loop that a careful diffrax user writes around events, as a peer.

`diffeqsolve` runs to the next event (`Event` with a root finder), the state jumps, and
the two repeat inside a bounded loop. diffrax differentiates a solve either forward
(`ForwardMode`) or in reverse (`RecursiveCheckpointAdjoint`), not both in one call, so
the loop is written for one of the two.
"""

from typing import Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import hybridjax as hj
import jax
import jax.numpy as jnp
import optimistix as optx


Kind = Literal["forward", "reverse"]


def _falling(t, x, args):
    """The guards that fall, and 1 for the others. A rising guard is left out, and so is
    one that stands still: otherwise one that has just fired, and is zero to rounding,
    hides the others from the sign test for the whole next step."""
    system, mode, args = args
    flow = system.flow(t, x, mode, args)
    guards = lambda t, x: system.guards(t, x, mode, args)
    g, rate = jax.jvp(guards, (t, x), (jnp.ones_like(t), flow))
    return jnp.where(rate < 0, g, 1.0)


def _flow(t, x, args):
    system, mode, args = args
    return system.flow(t, x, mode, args)


def _guard(t, y, args, **kwargs):
    return jnp.min(_falling(t, y, args))


class DiffraxLoop(eqx.Module):
    """Events by a loop around `diffrax.diffeqsolve`.

    **Arguments:**

    - `kind`: which derivatives are wanted; the values are the same.
    - `root_finder`: Newton is right (and fastest) for one guard that is concave, and
        wrong for the minimum over several: use bisection there.
    - `max_arcs`: bound on the number of solves, one more than that of events.
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
        system: hj.AbstractHybridSystem,
        t0,
        t1,
        x0,
        mode0,
        args=None,
        rtol=1e-8,
        atol=1e-8,
    ):
        """The state at `t1`."""
        if self.kind == "forward":
            adjoint = diffrax.ForwardMode()
        else:
            adjoint = diffrax.RecursiveCheckpointAdjoint(self.checkpoints)
        event = diffrax.Event(_guard, self.root_finder, direction=False)
        controller = diffrax.PIDController(rtol=rtol, atol=atol)

        def unfinished(carry):
            t, *_ = carry
            return t < t1

        def arc(carry):
            t, x, mode = carry
            sol = diffrax.diffeqsolve(
                diffrax.ODETerm(_flow),
                diffrax.Tsit5(),
                t,
                t1,
                None,
                x,
                (system, mode, args),
                stepsize_controller=controller,
                event=event,
                adjoint=adjoint,
                max_steps=self.max_steps,
                throw=False,
            )
            assert sol.ts is not None and sol.ys is not None
            ended = jnp.asarray(sol.event_mask)
            t, x = sol.ts[-1], sol.ys[-1]
            fired = jnp.argmin(_falling(t, x, (system, mode, args)))
            jumped = system.jump(t, x, mode, fired, args)
            x, mode = jax.tree.map(
                lambda a, b: jnp.where(ended, a, b), jumped, (x, mode)
            )
            return t, x, mode

        mode0 = jax.tree.map(jnp.asarray, mode0)
        carry = (jnp.asarray(t0, x0.dtype), x0, mode0)
        forward = self.kind == "forward"
        _, x1, _ = eqxi.while_loop(
            unfinished,
            arc,
            carry,
            max_steps=self.max_arcs,
            kind="lax" if forward else "checkpointed",
            checkpoints=None if forward else self.max_arcs,
        )
        return x1


def one_guard(kind: Kind, max_events: int) -> DiffraxLoop:
    return DiffraxLoop(kind, optx.Newton(rtol=1e-8, atol=1e-8), max_events + 1)


def many_guards(kind: Kind, max_events: int) -> DiffraxLoop:
    # Bisection stops at its tolerance, where Newton lands at rounding: two digits more
    # keep the event times as exact as the steps.
    return DiffraxLoop(kind, optx.Bisection(rtol=1e-10, atol=1e-10), max_events + 1)
