"""What is refused, by name."""

import sys

import hybridjax as hj
import pytest


_BODY = '<body name="b"><joint name="j" {joint}/><geom name="g" {geom}/></body>'
_SPHERE = 'size=".1"'
_FLOOR = '<geom name="floor" type="plane" size="1 1 1" {}/>'


def _model(joint="", geom=_SPHERE, floor="", world="", after=""):
    body = _BODY.format(joint=joint, geom=geom)
    floor = _FLOOR.format(floor)
    return f"<mujoco><worldbody>{floor}{body}{world}</worldbody>{after}</mujoco>"


@pytest.mark.parametrize(
    "xml, message",
    [
        (
            _model(
                after='<tendon><fixed name="belt" frictionloss="1">'
                '<joint joint="j" coef="1"/></fixed></tendon>'
            ),
            r"dry friction \(frictionloss\) at tendon 'belt'",
        ),
        (_model(joint='type="ball" stiffness="1"'), "spring at joint 'j'"),
        (_model(joint='type="ball" range="0 1" limited="true"'), "limit of joint 'j'"),
        (
            _model(geom='type="ellipsoid" size=".1 .2 .3"'),
            "contact of geom 'g', of a sh",
        ),
        (_model(geom='size=".1" condim="6"'), "'floor' and geom 'g' has torsional"),
        (
            _model(world='<geom name="wall" type="box" size="1 1 1"/>'),
            "contact of geom 'wall' and geom 'g'",
        ),
        (_model(after='<option density="1"/>'), "in a fluid"),
        ("<mujoco/>", "no joints"),
        (
            _model(
                after='<actuator><general name="m" joint="j" dyntype="filter"/>'
                "</actuator>"
            ),
            "actuator 'm' with a state or a force law of its own",
        ),
        (
            _model(after='<actuator><general name="m" body="b"/></actuator>'),
            "actuator 'm' that acts on something else",
        ),
        (
            _model(
                joint='type="ball"',
                after='<actuator><position name="m" joint="j"/></actuator>',
            ),
            "actuator 'm', a servo of the position",
        ),
        (
            _model(
                world='<site name="s"/><body><site name="t"/></body>',
                after='<tendon><spatial name="rope" stiffness="1"><site site="s"/>'
                '<site site="t"/></spatial></tendon>',
            ),
            "a spatial tendon, tendon 'rope'",
        ),
    ],
)
def test_refused_by_name(xml, message):
    with pytest.raises(ValueError, match=message):
        hj.robots.from_mjcf(xml)


def test_friction_in_place_of_that_of_the_file():
    robot = hj.robots.from_mjcf(_model(geom='size=".1" condim="6"'), friction=0.5)
    assert robot.system.friction.tolist() == [0.5]


def test_wrong_controls():
    after = '<actuator><motor joint="j"/></actuator>'
    robot = hj.robots.from_mjcf(_model(after=after))
    with pytest.raises(
        ValueError, match=r"`args` must be the vector of the 1 controls"
    ):
        robot.system.effort(0.0, *robot.x0, [1.0, 2.0])
    control = lambda t, q, v, args: q[:0]
    robot = hj.robots.from_mjcf(_model(after=after), control=control)
    with pytest.raises(ValueError, match="What `control` returns must be the vector"):
        robot.system.effort(0.0, *robot.x0, None)


def test_without_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"pip install 'hybridjax\[robots\]'"):
        hj.robots.from_mjcf("<mujoco/>")
