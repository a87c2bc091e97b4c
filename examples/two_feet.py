"""Land a body on both of its feet in the same instant, and differentiate that.

A planar body falls, level, on two legs with springs and dampers. Tilted a little to one
side, it lands on one foot first; tilted to the other, on the other. Its dampers are
half as strong while only one foot is on the ground, so that the order matters to first
order: the state after the landing has a kink in the initial pitch. It has a derivative
to the left and another one to the right, and no other.
"""

import jax
import jax.numpy as jnp


jax.config.update("jax_enable_x64", True)

import diffrax
import hybridjax as hj
from hybridjax.models import TwoLegs


body = TwoLegs(single_support=0.5)
t1 = 0.3  # s, in the middle of the stance
names = ["x (m)", "z (m)", "pitch (rad)", "v_x (m/s)", "v_z (m/s)", "pitch rate (1/s)"]
controller = diffrax.PIDController(rtol=1e-10, atol=1e-10)


@jax.jit
def land(pitch):
    """The landing of a body that is dropped with this pitch (rad)."""
    x0 = jnp.stack([0.0, 0.7, pitch, 0.5, 0.0, 0.0])
    return hj.simulate(
        body,
        0.0,
        t1,
        x0,
        jnp.array([0, 0]),
        stepsize_controller=controller,
        max_steps=256,
        max_events=8,
    )


def final_state(pitch):
    return land(pitch).x1


@jax.jit
def derivative(direction):
    """The derivative of the final state at level, in a direction of the pitch."""
    return jax.jvp(final_state, (0.0,), (direction,))[1]


@jax.jit
def gradient():
    """`jax.grad`, of all entries of the final state."""
    return jax.jacrev(final_state)(0.0)


def one_sided(h):
    """A one-sided difference quotient of second order in the step `h`."""
    at = [final_state(k * h) for k in range(3)]
    return (-3 * at[0] + 4 * at[1] - at[2]) / (2 * h)


level = land(0.0)
print(f"Dropped level, and followed for {t1} s. Events, with the time of each:")
for i in range(int(level.events.count)):
    foot = "right" if level.events.event[i] == 0 else "left"
    lands = level.events.mode_after[i].sum() > level.events.mode_before[i].sum()
    what = "touches down" if lands else "lifts off"
    print(f"  {float(level.events.t[i]):.9f} s  the {foot} foot {what}")

left, right = -derivative(-1.0), derivative(1.0)
fd_left, fd_right = one_sided(-1e-4), one_sided(1e-4)
grad = gradient()

print(
    f"""
Derivatives of the state at {t1} s with respect to the initial pitch:

                    to the left (pitch < 0)  to the right (pitch > 0)
                        jvp     differences      jvp     differences      jax.grad"""
)
for i, name in enumerate(names):
    print(
        f"{name:<17}{left[i]:12.6f}{fd_left[i]:13.6f}"
        f"{right[i]:12.6f}{fd_right[i]:13.6f}{grad[i]:14.6f}"
    )

log = level.events
corner = hj.b_derivative(body, log.t[0], log.x_before[0], log.mode_before[0])
print(f"\nhj.b_derivative: is it linear there? {corner.is_linear()}.")

side = "left" if abs(grad - left).max() < abs(grad - right).max() else "right"
print(
    f"""
Left and right differ: at a level landing the final state has a kink, and no gradient.
`jax.jvp` gives the derivative in the direction that it is asked for, and the one-sided
differences agree with it. `jax.grad` has no direction: it takes the feet in the order
in which the simulation recorded them, and so gives the derivative to the {side}, which
is one of the gradients that occur near the kink.
"""
)

error = max(abs(left - fd_left).max(), abs(right - fd_right).max())
assert error < 1e-5, error
assert abs(left - right).max() > 0.1
