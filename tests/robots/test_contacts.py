"""Contact points, gaps and tangents, beside MuJoCo's."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import error
from .models import HOPPER, mujoco, SHAPES


def test_gaps_and_tangents():
    robot = hj.robots.from_mjcf(SHAPES)
    model, system = robot.model, robot.system
    names = [name.partition(",")[0] for name in robot.contacts]
    on_slope = {"ball": 1, "capsule": 2, "box": 8, "cylinder": 16, "other": 1}
    expected = sum(([f"{g} on slope"] * n for g, n in on_slope.items()), [])
    assert sorted(names[:-3]) == sorted(expected)
    assert names[-3:] == ["other on ball", "axle: lower limit", "axle: upper limit"]
    mu = dict(zip(names, np.asarray(system.friction), strict=True))
    # The larger one, or none; that of the pair; limits have none.
    assert mu["ball on slope"] == 0.5 and mu["other on slope"] == 1.0
    assert mu["other on ball"] == 0.7 and mu["axle: upper limit"] == 0.0

    rng = np.random.default_rng(0)
    q, v = rng.normal(size=model.nq), rng.normal(size=model.nv)
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_forward(model, data)
    q = data.qpos.copy()
    for place in 3, 11:
        q[place : place + 4] /= np.linalg.norm(q[place : place + 4])

    @jax.jit
    def kinematics(q, v):
        qdot = system.velocity_to_qdot(q, v)
        gap = lambda q: system.gap(q, None)
        gaps, rates = jax.jvp(gap, (q,), (qdot,))
        return gaps, rates, system.normals(q, None) @ v, system.tangents(q, None) @ v

    gaps, rates, by_normals, slips = kinematics(q, v)
    np.testing.assert_allclose(by_normals, rates, atol=1e-12)

    def velocity(body, point):
        jacobian = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian, None, point, body)
        return jacobian @ v

    def check(j, distance, normal, point, slip):
        np.testing.assert_allclose(gaps[j], distance, atol=1e-12)
        np.testing.assert_allclose(rates[j], slip @ normal, atol=1e-12)
        # Two orthonormal directions: only the length is known.
        along = np.linalg.norm(slip - (slip @ normal) * normal)
        np.testing.assert_allclose(np.linalg.norm(slips[j]), along, atol=1e-12)

    slope = model.geom("slope").id
    normal = data.geom_xmat[slope].reshape(3, 3)[:, 2]
    signs = np.stack(np.meshgrid(*[[-1, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
    angles = 2 * np.pi * np.arange(8) / 8
    rim = np.stack([0.2 * np.cos(angles), 0.2 * np.sin(angles)], axis=1)
    points = {
        "ball": (np.zeros((1, 3)), 0.1),
        "capsule": (np.array([[0, 0, -0.2], [0, 0, 0.2]]), 0.1),
        "box": (signs * [0.1, 0.2, 0.3], 0.0),
        "cylinder": (
            np.concatenate([np.insert(rim, 2, z, axis=1) for z in (-0.1, 0.1)]),
            0.0,
        ),
        "other": (np.zeros((1, 3)), 0.2),
    }
    for geom, (local, radius) in points.items():
        i, body = model.geom(geom).id, model.geom(geom).bodyid[0]
        margin = 0.01 + (0.02 if geom == "other" else 0)
        mine = [j for j, name in enumerate(names) if name == f"{geom} on slope"]
        for j, place in zip(mine, local, strict=True):
            centre = data.geom_xpos[i] + data.geom_xmat[i].reshape(3, 3) @ place
            height = (centre - data.geom_xpos[slope]) @ normal
            surface = centre - radius * normal
            slip = velocity(body, surface)
            check(j, height - radius - margin, normal, surface, slip)

    one, two = model.geom("ball").id, model.geom("other").id
    apart = data.geom_xpos[two] - data.geom_xpos[one]
    distance = np.linalg.norm(apart)
    normal, j = apart / distance, names.index("other on ball")
    on_one = data.geom_xpos[one] + 0.1 * normal
    on_two = data.geom_xpos[two] - 0.2 * normal
    bodies = model.geom_bodyid
    slip = velocity(bodies[two], on_two) - velocity(bodies[one], on_one)
    np.testing.assert_allclose(gaps[j], distance - 0.3, atol=1e-12)
    np.testing.assert_allclose(rates[j], normal @ slip, atol=1e-12)
    along = np.linalg.norm(slip - (slip @ normal) * normal)
    np.testing.assert_allclose(np.linalg.norm(slips[j]), along, atol=1e-12)

    angle = model.joint("axle").qposadr[0]
    limits = np.deg2rad([-1, 2])
    np.testing.assert_allclose(
        gaps[-2:], [q[angle] - limits[0], limits[1] - q[angle]], atol=1e-12
    )
    assert np.all(slips[-2:] == 0)


def test_models_that_move_in_a_plane():
    robot = hj.robots.from_mjcf(HOPPER)
    system, (q, v) = robot.system, robot.keyframe("low")
    # A cylinder whose axis is normal to the plane is a disc.
    assert robot.contacts == (
        *(f"geom 1 on floor, point {i}" for i in range(4)),
        *("foot on floor", "leg: lower limit", "leg: upper limit"),
    )
    gap, rows, (positions, rotations) = jax.jit(
        lambda q: (system.gap(q, None), system.tangents(q, None), robot.frames(q))
    )(q)
    np.testing.assert_allclose(gap[4], 0.05, atol=1e-12)
    assert rows.shape == (7, 4)
    # Forward, and by a rotation about y, which turns what is below backward.
    np.testing.assert_allclose(rows[4], [1, 0, -0.35, 0], atol=1e-12)
    np.testing.assert_allclose(
        positions, [[0, 0, 0], [0, 0, 0.4], [0, 0, 0.1]], atol=1e-12
    )
    assert error(rotations, np.tile(np.eye(3), (3, 1, 1))) < 1e-12
    assert v.tolist() == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="no keyframe 'high'"):
        robot.keyframe("high")


def test_walls_behind_what_moves_in_a_plane():
    def behind(y):
        wall = f'<geom name="wall" type="plane" pos="0 {y} 0" zaxis="0 1 0"'
        model = HOPPER.replace("<worldbody>", f'<worldbody>{wall} size="1 1 1"/>')
        robot = hj.robots.from_mjcf(model)
        on_walls = {name.split(",")[0] for name in robot.contacts if "wall" in name}
        return on_walls, robot.system.tangents(robot.x0[0], None).shape

    # Trunk and foot reach 0.1 m from their plane, and no motion changes that.
    assert behind(-0.1 - 1e-6) == (set(), (7, 4))
    assert behind(-0.1 + 1e-6)[0] == {"geom 2 on wall", "foot on wall"}


def test_height_function():
    slope = lambda x, y: 0.5 * x + 0.2
    robot = hj.robots.from_mjcf(HOPPER, ground=slope, contacts=["foot"], friction=0.4)
    system, (q, _) = robot.system, robot.keyframe("low")
    normal = np.array([-0.5, 1]) / np.sqrt(1.25)
    expected, below = normal @ [0, 0.1 - 0.2] - 0.05, -0.05 * normal
    (gap, *_), (rows, *_) = jax.jit(
        lambda q: (system.gap(q, None), system.tangents(q, None))
    )(q)
    np.testing.assert_allclose(gap, expected, atol=1e-12)
    tangent = np.array([normal[1], -normal[0]])
    moved = tangent @ [below[1] - 0.3, -below[0]]
    np.testing.assert_allclose(rows, [*tangent, moved, tangent[1]], atol=1e-12)
    assert system.friction.tolist() == [0.4, 0, 0]

    hills = lambda x, y: 0.1 * jnp.sin(3 * x + 1)
    hilly = hj.robots.from_mjcf(HOPPER, ground=hills, contacts=["foot"]).system
    slopes = jax.jacfwd(lambda q: hilly.gap(q, None))
    by_gap, normals = jax.jit(lambda q: (slopes(q), hilly.normals(q, None)))(q)
    np.testing.assert_allclose(normals, by_gap, atol=1e-12)
    assert abs(by_gap[0, 0]) > 0.1


def test_which_pairs():
    balls = """
      <mujoco><worldbody>
        <geom name="floor" type="plane" size="1 1 1" contype="0" conaffinity="2"/>
        <body name="a"><freejoint/><geom name="a" size=".1"/></body>
        <body name="b"><freejoint/><geom name="b" size=".1" contype="2"/>
          <body name="c"><joint/><geom name="c" size=".1" contype="2"/></body></body>
        <body name="d"><freejoint/><geom name="d" size=".1"/></body>
      </worldbody>
      <contact><exclude body1="a" body2="d"/></contact></mujoco>"""
    of = lambda contacts: hj.robots.from_mjcf(balls, contacts=contacts).contacts
    assert of("ground") == ("b on floor", "c on floor")
    everything = {"b on a", "c on a", "d on b", "d on c", "b on floor", "c on floor"}
    assert set(of("all")) == everything
    assert of(["b", ("a", "d")]) == ("b on floor", "d on a")
    assert of(()) == ()
    for contacts, message in (
        (["e"], "no geom of this name"),
        (["a"], "touches nothing that is at rest"),
        ("none", "must be 'ground', 'all'"),
    ):
        with pytest.raises(ValueError, match=message):
            of(contacts)


def test_equality_constraints():
    linkage = """
      <mujoco><worldbody>
        <body name="a" pos="0 0 1"><joint name="a" type="ball"/><geom size=".1"/></body>
        <body name="b" pos="1 0 1"><freejoint/><geom size=".1"/></body>
        <body name="c" pos="0 1 1"><joint name="c"/><joint name="d" axis="1 0 0"/>
          <geom size=".1"/></body>
      </worldbody>
      <equality>
        <connect body1="a" body2="b" anchor=".5 0 0"/>
        <joint joint1="c" joint2="d" polycoef=".1 .2 .3 .4 .5"/>
      </equality></mujoco>"""
    robot = hj.robots.from_mjcf(linkage)
    rng = np.random.default_rng(0)
    q = rng.normal(size=robot.model.nq)
    for place in 0, 7:
        q[place : place + 4] /= np.linalg.norm(q[place : place + 4])
    data = mujoco.MjData(robot.model)
    data.qpos[:] = q
    mujoco.mj_forward(robot.model, data)
    got = robot.system.constraints(0.0, jnp.asarray(q), None)
    np.testing.assert_allclose(got, data.efc_pos[: data.ne], atol=1e-12)


def test_welds():
    welded = """
      <mujoco><worldbody>
        <body name="a" pos="0 0 1" euler="10 20 30"><freejoint/><geom size=".1"/></body>
        <body name="b" pos="1 0 1" euler="0 50 0"><freejoint/><geom size=".1"/></body>
      </worldbody><equality><weld body1="a" body2="b"/></equality></mujoco>"""
    robot = hj.robots.from_mjcf(welded)
    body, (q, v) = robot.system, robot.x0
    rng = np.random.default_rng(0)

    @jax.jit
    def residual_and_jacobian(q):
        rows = lambda v: jax.jvp(
            lambda q: body.constraints(0.0, q, None),
            (q,),
            (body.velocity_to_qdot(q, v),),
        )[1]
        return body.constraints(0.0, q, None), jax.jacfwd(rows)(v)

    residual, jacobian = residual_and_jacobian(q)
    assert np.abs(residual).max() < 1e-12
    assert np.linalg.matrix_rank(jacobian) == 6
    # It is that of a common motion of both, wherever they are.
    turn = rng.normal(size=3)
    data = mujoco.MjData(robot.model)
    mujoco.mj_kinematics(robot.model, data)
    common = []
    for i in 1, 2:
        common += [np.cross(turn, data.xpos[i]), data.xmat[i].reshape(3, 3).T @ turn]
    assert np.abs(jacobian @ np.concatenate(common)).max() < 1e-12
