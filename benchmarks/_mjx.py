"""The nearest model in MuJoCo's MJX to the hopper of hoppers.py.

Its contact is a spring and a damper that cannot pull. In MuJoCo's terms: an impedance
of almost 1, for which the depth `r` follows `r'' = -k r - b r'` while there is a force,
whatever the mass; and friction that lets the foot stop within two steps, if the cone
allows. How long a contact takes is for us to choose: with steps of 0.002 and 0.0005 the
final positions are best, though still centimetres off, for some seven to ten steps.
"""

import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx


_RADIUS = 0.02  # of the foot, in m; the ground is lower by as much


def _xml(mass, inertia, leg, stiffness, damping, gravity, iterations, search) -> str:
    passive = 'contype="0" conaffinity="0"'
    return f"""<mujoco>
<compiler inertiafromgeom="false"/>
<option gravity="0 0 {-gravity}" cone="elliptic" solver="Newton"
  iterations="{iterations}" ls_iterations="{search}"/>
<worldbody>
<geom name="ground" type="plane" size="1 1 1" pos="0 0 {-_RADIUS}" {passive}/>
<body><inertial pos="0 0 0" mass="{mass}" diaginertia="{inertia} {inertia} {inertia}"/>
<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
<joint type="hinge" axis="0 -1 0" stiffness="{stiffness}" damping="{damping}"/>
<geom name="foot" size="{_RADIUS}" pos="0 0 {-leg}" {passive}/>
</body></worldbody>
<contact><pair geom1="ground" geom2="foot" condim="3"
  solimp="0.9999 0.9999 0.001 0.5 1"/></contact>
</mujoco>"""


def _restitution(zeta):
    """Of a spring and a damper that do not pull, at the damping ratio `zeta`.

    See Schwager, Pöschel, *Coefficient of restitution and linear-dashpot model
    revisited*.
    """
    root = jnp.sqrt(1 - zeta**2)
    angle = jnp.arctan2(2 * zeta * root, 1 - 2 * zeta**2)
    return jnp.exp(-zeta / root * (jnp.pi - angle))


def damping_ratio(e):
    """The inverse of `_restitution`, by Newton's method: differentiable."""
    zeta = -jnp.log(e) / jnp.sqrt(jnp.pi**2 + jnp.log(e) ** 2)
    for _ in range(6):
        value, slope = jax.jvp(_restitution, (zeta,), (jnp.ones_like(zeta),))
        zeta = zeta - (value - e) / slope
    return zeta


def as_double(tree):
    """MJX chooses float32 for its arrays; this does not."""
    single = lambda a: getattr(a, "dtype", None) == jnp.float32
    return jax.tree.map(lambda a: a.astype(jnp.float64) if single(a) else a, tree)


class Hopper:
    """Simulates one hopper for `steps` steps of `dt`, with contacts of duration
    `contact`.

    If `steps` is an array then no new compilation is needed for another number, but
    there is no reverse mode.
    """

    def __init__(self, *, iterations: int, search: int, **parameters: float):
        xml = _xml(**parameters, iterations=iterations, search=search)
        model = mujoco.MjModel.from_xml_string(xml)
        self._model = as_double(mjx.put_model(model))
        self._data = as_double(mjx.make_data(model))

    def __call__(self, friction, restitution, q, v, dt, contact, steps) -> jax.Array:
        rate = jnp.pi / contact
        damping = 2 * damping_ratio(restitution) * rate
        model = self._model.replace(
            opt=self._model.opt.replace(timestep=dt),
            pair_friction=self._model.pair_friction.at[:, :2].set(friction),
            pair_solref=jnp.stack([-(rate**2), -damping])[None],
            pair_solreffriction=jnp.stack([-jnp.ones_like(dt), -0.5 / dt])[None],
        )

        @jax.checkpoint
        def step(state, _):
            q, v, warm = state
            data = self._data.replace(qpos=q, qvel=v, qacc_warmstart=warm)
            data = mjx.step(model, data)
            return (data.qpos, data.qvel, data.qacc_warmstart), None

        state = (q, v, jnp.zeros_like(v))
        if isinstance(steps, int):
            state, _ = jax.lax.scan(step, state, length=steps)
        else:
            state = jax.lax.fori_loop(0, steps, lambda _, s: step(s, None)[0], state)
        return jnp.concatenate(state[:2])
