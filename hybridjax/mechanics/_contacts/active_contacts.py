"""Which contacts are active: a complementarity problem."""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._jax.branch import where
from ..._jax.diagonal import diagonal
from ..._jax.division import divided
from ..._jax.tracing import stop_gradient
from .._dynamics.dot import dot
from .complementarity import (
    Active,
    are_redundant,
    contact_forces_and_solver,
    force_size,
    friction_limit,
    held_rows,
    posedness,
    pushed_back,
)
from .projections import by_projections
from .sliding_directions import sliding_directions, strays
from .slipping_directions import slipping_directions
from .tangential import along, in_space, norm, of_contacts, unit


def find_active(
    W: Float[Array, "rows rows"],
    c: Float[Array, " rows"],
    size: Float[Array, ""],
    guess: Active,
    resting: Bool[Array, " n"],
    known: Bool[Array, " n"],
    held: Bool[Array, ""],
    released: Bool[Array, " n"],
    friction: Float[Array, " n"],
    static_friction: Float[Array, " n"],
    exact: float,
    least: ArrayLike = -jnp.inf,
    drive: Float[Array, " rows"] | None = None,
    unseen: ArrayLike = 0.0,
    clings: Bool[Array, " n"] | None = None,
    errors: ArrayLike = 0.0,
    at_rest: bool = False,
    waits: ArrayLike = False,
) -> tuple[Active, Active, Bool[Array, " n"]]:
    """Which of the contacts that are closed in `guess` stay closed, and stick.

    A closed contact must not pull, nor an open one sink; a sticking one must stay
    within its friction cone, and one that begins to slide must move against its
    friction. Contacts that do not are changed, one at a time: the first one, as in
    Murty's least-index method. In space, they begin from a good guess, and directions
    of slip are found for each attempt. Where that leads nowhere, as it may with
    friction, and contacts are few, all that they can do is tried.

    One whose static friction has no limit leaves its cone where it would pull, and so
    with a tangential force: it opens, or slides, if without that force it would sink.

    **Arguments:**

    - `size`: of what `c` is the sum of, for rounding.
    - `guess`: only its closed contacts can become active, and what `waits`.
    - `resting`: the contacts that may stick, or begin to slide; others slide on in
        their direction.
    - `known`: contacts that stay what they are.
    - `held`: whether all stay closed, also those that have to pull for that; without
        friction, where nothing is found with it.
    - `released`: contacts whose force is zero, and about to pull.
    - `exact`: the share of the digits, of forces and accelerations, that is relied on.
    - `least`: those that open no faster stay closed after all, though they have to pull
        a little for that, if nothing speaks against it but this, and that others pull
        as little for it; and they are pressed back: by accelerations without contact,
        `drive`, and the forces of the others. The direction of those that are as slow
        along their surfaces is zero, and so their friction.
    - `unseen`: a pull that takes no more than this of a contact's speed is none.
    - `clings`: contacts that stick where they stay closed though they have to pull,
        whatever it takes: it is as little.
    - `errors`: an acceleration of gaps that is none: all it does is to remove errors.
    - `at_rest`: whether `c` are accelerations of contacts at rest, not velocities. Then
        the guess comes first: nothing has happened to most contacts.
    - `waits`: contacts that are open, and close where they would sink.

    **Returns:**

    The active contacts; these without what stays closed though it is about to open
    slowly; and the contacts for which nothing was found.
    """
    W, c, guess, friction, static_friction = stop_gradient(
        (W, c, guess, friction, static_friction)
    )
    drive = stop_gradient(drive)
    n = friction.shape[0]
    clings = jnp.zeros((n,), bool) if clings is None else clings
    static_friction = jnp.where(clings & held, jnp.inf, static_friction)
    tangential, spatial = c.shape[0] - n, in_space(c.shape[0], n)
    when, trusted = int(at_rest), jnp.asarray(False)
    opened = opening(guess, released, static_friction)
    first = eqx.tree_at(lambda a: a.closed, guess, guess.closed & ~opened)
    if spatial:
        projected, converged = by_projections(
            W, c, first, resting, known, held, friction, static_friction
        )
        # The least forces of redundant contacts may leave the cones, although others
        # would not. What moves is the same with all, unless friction depends on them.
        rubs = projected.closed & ~projected.stick & (friction > 0)
        redundant = are_redundant(W, held_rows(projected, c.shape[0]))
        trusted = converged & redundant & ~rubs.any()
    members, own = guess.closed | waits, diagonal(W, n)
    many = jnp.sum(members.astype(jnp.int32))
    limit = 8 * many + 8 if not spatial else 2 * many + 4
    # At rest, what leaves its cone or lifts off is watched, and others hold it. So it
    # sticks only if nothing else is found.
    trust = limit if at_rest else when
    guesses = _ATTEMPTS * limit
    choices = _Choices.of(guess, resting, members & ~known)

    def faults(active: Active, onward, free, i, attempt):
        # Of choices: the tolerance of the first attempt, but nothing is the first one.
        attempt = jnp.where(i < guesses, attempt, 1)
        # Where contacts are redundant, what is left of errors can go round in circles:
        # the longer it takes, the less is demanded.
        tol = jnp.finfo(c.dtype).eps ** (exact - 0.1 * attempt.astype(c.dtype) / limit)
        force, solver = contact_forces_and_solver(W, c, active, friction)
        ill_posed = posedness(W, active, friction, solver) <= 0
        moves = c + dot(W, force)
        little_force = tol * force_size(W, size, force)
        little_move = tol * size
        closed = active.closed
        forces_count = ~(trusted & (i == trust))
        little_pull = jnp.maximum(little_force, unseen / jnp.where(own > 0, own, 1))
        pulls = closed & (force[:n] < -little_pull) & forces_count
        sinks = members & ~closed & (moves[:n] < -(little_move + errors))
        # Where nothing else has changed, what is released has no acceleration yet.
        sinks = sinks & ~(opened & ~others_change(first, active, opened))
        pulls = pulls | (released & closed & (attempt == 0)) | ill_posed
        # One that is known to slide may be unable to: then it opens.
        changes = ~known | ill_posed | ~closed
        normal = (pulls | sinks) & changes & ~held
        none = jnp.zeros_like(normal)
        pressed = none if drive is None else pushed_back(W, drive, active, solver)[:n]
        # What pulls no harder than what is slow, where this is closed.
        weak = closed & (own * force[:n] >= -jnp.asarray(least))
        if not tangential:
            return normal, none, active.direction, moves, ill_posed, pressed, weak
        press = jnp.where(held, jnp.abs(force[:n]), force[:n])
        cone = friction_limit(static_friction, press) + little_force
        slips = closed & active.stick & (norm(force[n:], n) > cone)
        # Without a load it has no friction, and others hold it, or it would sink.
        idle = slips | (closed & ~active.stick & resting) if spatial else slips
        idle = idle & forces_count & (press <= little_force)
        normal = normal | (idle & changes & ~held)
        slips = slips & forces_count
        # Not all can stick where they contradict each other by more than errors: a
        # mechanism at a dead centre, that moves on.
        moved = jnp.where(closed & active.stick & ~known, norm(moves[n:], n), 0)
        slid = (moved > jnp.finfo(c.dtype).eps ** 0.25 * size) & (i < guesses // 2)
        slid = slid & (moved == jnp.max(moved)) & at_rest
        slips = slips | slid
        if onward is None:
            onward = along(active.direction, moves[n:], n)
        stops = closed & ~active.stick & resting & (onward < -little_move)
        lost = ill_posed | strays(active, moves, free, size)
        away = of_contacts(slips | pulls, tangential)
        onto = jnp.where(of_contacts(slid, tangential), moves[n:], -force[n:])
        direction = jnp.where(away, unit(onto, n), active.direction)
        slips = (slips | stops) & ~known
        return normal, slips, direction, moves, lost, pressed, weak

    def cond(carry):
        i, _, _, unsolved, *_ = carry
        return (i < guesses + choices.count) & unsolved.any()

    def body(carry):
        i, active, before, _, slow, lost = carry
        # Those that pull may only do so because others stick that cannot. So those that
        # are wrong along their tangent come first; in every other attempt they do not.
        # Changes may go round in circles. So attempts after the first one take contacts
        # in other orders; and they begin with all of them open, from where that is
        # rarer: where more is closed than has a unique force, as a rule.
        number, attempt = divided(i, limit)
        last, tangent_first = slow.any(), (number & 1) == 0
        begins = (number > 0) & (attempt == 0) & ~last
        few = eqx.tree_at(lambda a: a.closed, guess, members & (known | held))
        active = where(begins, few, active)
        if spatial:
            active = where((i == when) | (i == trust), projected, active)
        tries = (i >= guesses) & ~last
        active = where(tries, choices.take(i - guesses, held), active)
        # What is pulled back turns the directions of others, as little. But these are
        # those of the instant before it.
        onward, free = None, (resting | known) & ~last
        if spatial and at_rest:
            active, onward = slipping_directions(W, c, active, free, friction)
        elif spatial:
            active = sliding_directions(W, c, active, free, friction)
        normal, tangent, direction, moves, lost_here, pressed, weak = faults(
            active, onward, free, i, attempt
        )
        bad = (normal & ~slow) | (tangent & ~(slow & active.stick))
        candidates = jnp.where(tangent_first & tangent.any(), tangent, bad)
        _, place = divided(jnp.arange(n) * (1 + 382 * number), _PRIME)
        place = jnp.where(candidates, place, _PRIME)
        one = candidates & (jnp.arange(n) == jnp.argmin(place)) & ~last
        # One that could not stick may well be able to slide, without pulling.
        turn = one & tangent
        flip = one & ~turn
        turn = turn | (flip & active.closed & active.stick & jnp.isinf(static_friction))
        # The last change of all: those that are slow, and others that pull as little
        # for it. It is taken back if anything else is bad, or their friction ill-posed.
        # Not what does not open at all, for the others hold it: it needs no force.
        undone = last & (lost_here | (bad & ~(normal & weak))).any()
        opens = moves[:n] > jnp.finfo(c.dtype).eps ** 0.75 * size
        slowly = members & ~active.closed & opens & (moves[:n] <= least) & pressed
        done = ~bad.any() & ~last
        # But where directions were not found, all is sought in another order.
        astray = done & lost_here & ~held
        found = (done & ~astray.any() & slowly) | (bad & last & ~undone)
        turned = of_contacts(turn, max(tangential, n))
        direction = jnp.where(turned, direction, active.direction)
        # Its friction is that of the force which presses it back, together with which
        # it is as if it had opened, and landed again. What is as slow along its surface
        # slides without friction, or it `clings`.
        sticks = clings
        if tangential:
            slides = norm(moves[n:], n) > 2 * jnp.asarray(least)
            onto = jnp.where(of_contacts(slides, tangential), unit(moves[n:], n), 0)
            direction = jnp.where(of_contacts(found, tangential), onto, direction)
            sticks = clings & ~slides
        changed = Active(
            closed=(active.closed ^ flip) | found,
            stick=jnp.where(found, sticks, active.stick ^ turn),
            direction=direction,
        )
        lost = jnp.where(last, lost, lost_here)
        changed, before = where(undone, before, changed), where(last, before, active)
        ahead = jnp.where(astray.any() & (i < guesses), limit - attempt, 1)
        goes_on = (bad & ~last) | found | astray
        return i + ahead.astype(i.dtype), changed, before, goes_on, slow | found, lost

    none = jnp.zeros_like(members)
    start = (jnp.asarray(0, jnp.int32), first, first, members, none, none)
    _, active, before, unsolved, slow, lost = lax.while_loop(cond, body, start)
    before = where(slow.any(), before, active)
    # With a force that pulls there may be no direction of slip against its friction.
    fails = unsolved | lost
    slick = held & fails.any()
    direction = jnp.where(slick, 0, active.direction)
    active = eqx.tree_at(lambda a: a.direction, active, direction)
    return active, before, fails & ~held


def opening(guess: Active, released, static_friction) -> Bool[Array, " n"]:
    """Contacts that open where they are released, if what others do then does not close
    them again. What pushes along its surface without a limit may not have to open."""
    return released & ~(guess.stick & jnp.isinf(static_friction))


def others_change(before: Active, after: Active, opened) -> Bool[Array, ""]:
    """Does any contact that has not `opened` close, open, stick or slip?"""
    slips = (before.stick ^ after.stick) & after.closed
    change = (before.closed ^ after.closed) | slips
    return (change & ~opened).any()


# Multiples of a number are in another order, by their rest.
_ATTEMPTS, _PRIME = 6, 1009


class _Choices(eqx.Module):
    """All that contacts can do: one that rests can open, stick, or slide to either side
    (in space: slide, in a direction that is sought); another one open or slide on."""

    guess: Active
    resting: Bool[Array, " n"]
    free: Bool[Array, " n"]
    many: Int[Array, " n"]  # how many things each can do
    stride: Int[Array, " n"]  # after how many choices it does another one
    count: Int[Array, ""]  # zero if there are too many

    @classmethod
    def of(cls, guess: Active, resting, free) -> "_Choices":
        at_rest = 4 if guess.direction.shape == free.shape else 3
        many = jnp.where(free, jnp.where(resting, at_rest, 2), 1)
        # As floats, which do not overflow.
        total = jnp.cumprod(many.astype(float))
        count = jnp.where(total[-1] <= _MOST_CHOICES, total[-1], 0).astype(jnp.int32)
        stride = jnp.minimum(total / many, _MOST_CHOICES).astype(jnp.int32)
        return cls(guess, resting, free, many, stride, count)

    def take(self, index: Int[Array, ""], held) -> Active:
        """The choice with this index, from zero to `count`."""
        guess, free, rests = self.guess, self.free, self.free & self.resting
        _, own = divided(divided(jnp.maximum(index, 0), self.stride)[0], self.many)
        direction = guess.direction
        if direction.shape == own.shape:
            side = jnp.where(own == 2, 1, -1).astype(direction.dtype)
            direction = jnp.where(rests & (own >= 2), side, direction)
        return Active(
            closed=jnp.where(free & ~held, own > 0, guess.closed),
            stick=jnp.where(free, rests & (own == 1), guess.stick),
            direction=direction,
        )


# Of five contacts in the plane that rest, of six in space.
_MOST_CHOICES = 1024
