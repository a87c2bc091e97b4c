"""Ready-made systems, by field: balls, bodies, circuits, fields, legs, mechanisms,
neurons."""

from .._jax.signature import make_readable
from ._balls.ball_on_ground import BallOnGround as BallOnGround
from ._balls.ball_on_paddle import BallOnPaddle as BallOnPaddle
from ._balls.ball_on_slope import ball_on_slope as ball_on_slope
from ._balls.balls import Balls as Balls
from ._balls.bouncing_ball import BouncingBall as BouncingBall
from ._balls.paddle_juggler import paddle_juggler as paddle_juggler
from ._balls.pushed_ball import PushedBall as PushedBall
from ._balls.thrown_ball import ThrownBall as ThrownBall
from ._balls.walled_ball import WalledBall as WalledBall
from ._bodies.body_on_plane import body_on_plane as body_on_plane
from ._bodies.corners import (
    rimless_wheel as rimless_wheel,
    rocking_block as rocking_block,
    rod as rod,
)
from ._bodies.impact_oscillator import ImpactOscillator as ImpactOscillator
from ._bodies.incline import (
    block_on_incline as block_on_incline,
    point_mass_on_slope as point_mass_on_slope,
)
from ._bodies.plate import plate_on_springs as plate_on_springs
from ._bodies.rigid_bar import RigidBar as RigidBar
from ._circuits.converters import (
    boost_converter as boost_converter,
    buck_converter as buck_converter,
)
from ._fields.affine_octants import (
    affine_octants as affine_octants,
    affine_octants_flow as affine_octants_flow,
)
from ._fields.block_on_belt import block_on_belt as block_on_belt
from ._fields.piecewise_constant import (
    linear_table as linear_table,
    piecewise_constant as piecewise_constant,
)
from ._fields.relay import relay as relay
from ._fields.sliding_mode_control import sliding_mode_control as sliding_mode_control
from ._legged.compass_gait import CompassGait as CompassGait
from ._legged.planar_hopper import PlanarHopper as PlanarHopper
from ._legged.robots import (
    planar_biped as planar_biped,
    planar_links as planar_links,
    planar_monoped as planar_monoped,
)
from ._legged.simplest_walker import SimplestWalker as SimplestWalker
from ._legged.soft_biped import soft_biped as soft_biped
from ._legged.spring_hopper import (
    spring_hopper as spring_hopper,
    spring_hopper_flow as spring_hopper_flow,
)
from ._legged.trotter import (
    rigid_trotter as rigid_trotter,
    soft_trotter as soft_trotter,
)
from ._legged.two_legs import TwoLegs as TwoLegs
from ._mechanisms.acrobat import acrobat as acrobat
from ._mechanisms.five_bar import (
    five_bar as five_bar,
    five_bar_links as five_bar_links,
    five_bar_start as five_bar_start,
)
from ._neurons.spiking_network import SpikingNetwork as SpikingNetwork


make_readable(*list(globals().values()))
