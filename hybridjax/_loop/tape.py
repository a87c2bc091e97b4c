import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import crossing_times
from .._systems.flat import FlatSystem
from .results import RESULTS


class Row(eqx.Module):
    """From `(t, x)`, flow for `dt` in `mode`, which leads to `x_pre`; then, if
    `event >= 0`, jump. Rows of rejected attempts have `dt = 0` and `event = -1`.
    """

    t: Float[Array, ""]
    dt: Float[Array, ""]
    rate: Float[Array, ""]  # of the guard that fired
    x: Float[Array, " n"]
    x_pre: Float[Array, " n"]
    mode: PyTree
    event: Int[Array, ""]
    # Of an event: did it happen inside of the guard set, where a reset or the start
    # led, and not on its boundary? And could another guard have fired in its place?
    inside: Bool[Array, ""]
    shared: Bool[Array, ""]

    def inner(self, fired: Bool[Array, ""]) -> Bool[Array, ""]:
        """Is it an event at the very instant of one in the row before, if that `fired`:
        with no flow between them?"""
        return fired & (self.event >= 0) & (self.dt == 0)

    @property
    def turns(self) -> Bool[Array, ""]:
        """Is the guard of an event at rest where it is zero? The saltation rule divides
        by its rate. Where that is zero, what the rule says may be zero too, and would
        pass for a derivative that exists."""
        return (self.event >= 0) & ~self.inside & (self.rate == 0)

    @property
    def may_be_special(self) -> Bool[Array, ""]:
        """May it be one of several events in its instant, or one that `turns`?"""
        return (self.event >= 0) & (self.shared | (self.dt == 0)) | self.turns


class Tape(eqx.Module):
    """What a simulation did, row by row.

    Only the first `num_rows` rows exist; the `t` of the others is infinite.
    """

    # The rows as they were written, packed in a table of floats and one of integers:
    # what reads them one by one touches those that exist, and no others.
    table: tuple[Array, ...]
    t: Float[Array, " rows"]
    dt: Float[Array, " rows"]
    x: Float[Array, "rows n"]
    x_pre: Float[Array, "rows n"]
    mode: PyTree
    event: Int[Array, " rows"]
    rate: Float[Array, " rows"]
    inside: Bool[Array, " rows"]
    shared: Bool[Array, " rows"]
    t_event: Float[Array, " rows"]  # t + dt, the time of the event
    num_rows: Int[Array, ""]
    ordinary: Bool[Array, ""]  # of no row in any lane of a batch `may_be_special`
    # The end of the simulation.
    t_end: Float[Array, ""]
    x_end: Float[Array, " n"]
    mode_end: PyTree
    guard_end: Int[Array, ""]  # the guard that an error message should name, or -1
    result: RESULTS
    num_events: Int[Array, ""]
    num_steps: Int[Array, ""]
    num_accepted: Int[Array, ""]
    corner_tol: Float[Array, ""]  # an absolute time
    same_time: Float[Array, ""]  # and what cannot be told from another
    # Whether there is a derivative; True where none was asked for.
    smooth: Bool[Array, ""]
    # Rows with an event are Euler steps, that end near the guard only.
    projects: bool = eqx.field(static=True)

    @property
    def exists(self) -> Bool[Array, " rows"]:
        return jnp.arange(self.event.shape[0]) < self.num_rows

    @property
    def fired(self) -> Bool[Array, " rows"]:
        """Does the row exist, and end in an event?"""
        return self.exists & (self.event >= 0)

    def event_rows(self, max_events: int) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
        """The rows that end in an event, in order, and which of these slots there are.
        Those that stay empty repeat the first event: a reset may be undefined
        elsewhere."""
        fired = self.fired
        slot = jnp.arange(max_events)
        # Not `jnp.nonzero`, of which jax 0.12 cannot take a batch of batches.
        rows = jnp.searchsorted(jnp.cumsum(fired), slot + 1)
        rows = jnp.where(rows < fired.shape[0], rows, jnp.argmax(fired))
        return rows, slot < self.num_events

    def after(self, index: Int[Array, " n"], last: Bool[Array, " n"]):
        """Times, states and modes after these rows: where the next ones begin, or,
        after the `last` one, where the simulation ends."""

        def pick(rows, end):
            following = rows[jnp.clip(index + 1, 0, rows.shape[0] - 1)]
            return jnp.where(last.reshape((-1,) + (1,) * end.ndim), end, following)

        modes = jtu.tree_map(pick, self.mode, self.mode_end)
        return pick(self.t, self.t_end), pick(self.x, self.x_end), modes

    @property
    def inner(self) -> Bool[Array, " rows"]:
        """Is it an event at the very instant of that of the row before?"""
        fired = self.fired
        follows = fired[1:] & fired[:-1] & (self.dt[1:] == 0)
        return jnp.concatenate([jnp.zeros((1,), bool), follows])

    @property
    def guard_set_tol(self) -> Float[Array, ""]:
        """How far in the guard set an event is still on its boundary, as a time."""
        return (
            jnp.full_like(self.corner_tol, jnp.inf)
            if self.projects
            else self.corner_tol
        )

    def cluster(self, system: FlatSystem, t, dt, x, mode) -> Bool[Array, " n_guards"]:
        """Which guards may fire in the same instant as that of the row that flows for
        `dt` from `(t, x)`: all of them, or those that a projection meets together."""
        if not self.projects:
            return jnp.ones((system.n_guards,), bool)
        g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
        return jnp.abs(crossing_times(g, rate) - dt) <= self.corner_tol

    @property
    def leads(self) -> Bool[Array, " rows"]:
        """Is it the first event of an instant in which there are, or could have been,
        several?"""
        # The first row is no inner one: rolling moves a False to the end.
        several = self.shared | jnp.roll(self.inner, -1)
        return self.fired & ~self.inner & several

    @property
    def smooth_twice(self) -> Bool[Array, ""]:
        """Is there a second derivative, if there is a first? Not where two events share
        an instant, or one happens at the start."""
        at_start = self.fired[0] & (self.dt[0] == 0)
        return ~(self.leads.any() | at_start)

    @property
    def successful(self) -> Bool[Array, ""]:
        return (self.result == RESULTS.successful) | self.stopped

    @property
    def stopped(self) -> Bool[Array, ""]:
        """Did it end at a terminal event?"""
        return self.result == RESULTS.event_occurred
