"""The nearest model in MuJoCo's MJX to a ball that a force pushes while it bounces."""

import jax
import jax.numpy as jnp
import mujoco
from _mjx import as_double, damping_ratio
from mujoco import mjx


_RADIUS = 0.02  # in m; the ground is lower by as much

_XML = f"""<mujoco>
<compiler inertiafromgeom="false"/>
<option gravity="0 0 -9.8" solver="Newton" iterations="1" ls_iterations="8"/>
<worldbody>
<geom name="ground" type="plane" size="1 1 1" pos="0 0 {-_RADIUS}"/>
<body><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
<joint type="slide" axis="0 0 1"/><geom name="ball" size="{_RADIUS}"/></body>
</worldbody>
<contact><pair geom1="ground" geom2="ball" condim="1"
  solimp="0.9999 0.9999 0.001 0.5 1"/></contact>
</mujoco>"""


def roll(x0, forces, t1, restitution, steps_per_force=4, steps_in_contact=10):
    """The state at `t1`, of a ball of 1 kg. Each of the forces, in N, is held for an
    equal time; a contact takes some `steps_in_contact` steps."""
    model = as_double(mjx.put_model(mujoco.MjModel.from_xml_string(_XML)))
    start = as_double(mjx.make_data(model))
    dt = t1 / (forces.shape[0] * steps_per_force)
    rate = jnp.pi / (steps_in_contact * dt)
    damping = 2 * damping_ratio(jnp.asarray(restitution)) * rate
    model = model.replace(
        opt=model.opt.replace(timestep=jnp.asarray(dt)),
        pair_solref=jnp.stack([-(rate**2), -damping])[None],
    )

    @jax.checkpoint
    def step(state, force):
        q, v, warm = state
        data = start.replace(
            qpos=q, qvel=v, qacc_warmstart=warm, qfrc_applied=force[None]
        )
        data = mjx.step(model, data)
        return (data.qpos, data.qvel, data.qacc_warmstart), None

    state = (x0[:1], x0[1:], jnp.zeros(1))
    state, _ = jax.lax.scan(step, state, jnp.repeat(forces, steps_per_force))
    return jnp.concatenate(state[:2])
