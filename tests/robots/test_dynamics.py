"""Equations of motion, beside those of MuJoCo."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np

from ..helpers import error
from .models import ALL_JOINTS, mujoco


def random_states(model, n):
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(n, model.nq)), 3 * rng.normal(size=(n, model.nv))
    for j in range(model.njnt):
        kind, place = model.jnt_type[j], model.jnt_qposadr[j]
        first = {0: place + 3, 1: place}.get(int(kind))
        if first is not None:
            q[:, first : first + 4] /= np.linalg.norm(q[:, first : first + 4], axis=1)[
                :, None
            ]
    return q, v, rng.normal(size=(n, model.nu))


def of_mujoco(model, q, v, u):
    """Mass matrices, biases without compensated weights, efforts, rates."""
    data, h = mujoco.MjData(model), 1e-6
    for data.qpos[:], data.qvel[:], data.ctrl[:] in zip(q, v, u, strict=True):
        mujoco.mj_forward(model, data)
        mass = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, mass)
        effort = data.qfrc_passive - data.qfrc_gravcomp + data.qfrc_actuator
        ends = [data.qpos.copy() for _ in range(2)]
        for end, step in zip(ends, (h, -h), strict=True):
            mujoco.mj_integratePos(model, end, data.qvel, step)
        rate = (ends[0] - ends[1]) / (2 * h)
        yield mass, data.qfrc_bias - data.qfrc_gravcomp, effort, rate


def check_dynamics(model, n=1000):
    system = hj.robots.from_mjcf(model, contacts=()).system
    q, v, u = random_states(model, n)

    @jax.jit
    @jax.vmap
    def ours(q, v, u):
        rate = v if system.velocity_to_qdot is None else system.velocity_to_qdot(q, v)
        mass, bias = system.mass_matrix(q, u), system.bias(q, v, u)
        return mass, bias, system.effort(0.0, q, v, u), rate

    expected = zip(*of_mujoco(model, q, v, u), strict=True)
    mass, bias, effort, rate = (np.stack(a) for a in expected)
    got = ours(q, v, u)
    np.testing.assert_allclose(got[0], mass, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got[1], bias, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got[2], effort, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got[3], rate, rtol=0, atol=1e-8)


def test_all_joints():
    check_dynamics(mujoco.MjModel.from_xml_string(ALL_JOINTS))


def test_coriolis_terms_are_those_of_the_mass_matrix():
    # Also those which MuJoCo agrees with: what is derived from the mass matrix.
    model = mujoco.MjModel.from_xml_string(ALL_JOINTS)
    model.opt.gravity[:] = 0
    robot = hj.robots.from_mjcf(model)
    given = robot.system
    derived = hj.mechanics.Multibody(
        given.mass_matrix, given.effort, velocity_to_qdot=given.velocity_to_qdot
    )
    q, v, u = (a[0] for a in random_states(model, 1))

    @jax.jit
    def tangents(q, v):
        rows = lambda x: [b(0.0, x, u)[1] for b in (given, derived)]
        return jax.jvp(rows, ((q, v),), ((v[0] * q, v),))

    for given, derived in tangents(q, v):
        assert error(given, derived) < 1e-11


def test_precision_is_that_of_the_state():
    robot = hj.robots.from_mjcf(ALL_JOINTS)
    x = jax.tree.map(lambda a: a.astype(jnp.float32), robot.x0)
    u = jnp.zeros(robot.model.nu, jnp.float32)
    rates = jax.eval_shape(robot.system, 0.0, x, u)
    assert {a.dtype for a in jax.tree.leaves(rates)} == {np.dtype("float32")}


def test_dry_friction():
    # While joints move, MuJoCo's friction has its limit, too. A ball joint has it about
    # each of its axes.
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><option><flag contact="disable"/></option><worldbody>
          <body><joint name="shoulder" type="ball" frictionloss=".3"/>
            <geom type="box" size=".1 .2 .3"/>
            <body pos="0 0 .4"><joint axis="0 1 0"/><geom size=".1"/>
              <body pos="0 0 .4"><joint name="wrist" axis="1 0 0" frictionloss=".2"/>
                <geom type="box" size=".1 .2 .3"/></body></body></body>
        </worldbody></mujoco>"""
    )
    robot = hj.robots.from_mjcf(model)
    axes = [f"shoulder: dry friction, velocity {i}" for i in range(3)]
    assert robot.contacts == (*axes, "wrist: dry friction")
    flow = jax.jit(lambda x, mode: robot.system.flow(0.0, x, mode, None)[1])
    data, mode = mujoco.MjData(model), hj.mechanics.ContactMode
    for q, v, _ in zip(*random_states(model, 20), strict=True):
        # It gives way a little: at low speeds the force is less.
        v = v + np.sign(v)
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        moves = np.where(v > 0, mode.FORWARD, mode.BACKWARD)[[0, 1, 2, 4]]
        assert error(flow((q, v), moves), data.qacc) < 1e-9
