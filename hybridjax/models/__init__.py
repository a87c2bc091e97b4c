from ._affine_octants import (
    affine_octants as affine_octants,
    affine_octants_flow as affine_octants_flow,
)
from ._ball_on_paddle import BallOnPaddle as BallOnPaddle
from ._ball_on_slope import ball_on_slope as ball_on_slope
from ._balls import Balls as Balls
from ._bouncing_ball import BouncingBall as BouncingBall
from ._piecewise_constant import (
    linear_table as linear_table,
    piecewise_constant as piecewise_constant,
)
from ._plate import plate_on_springs as plate_on_springs
from ._rigid_bar import RigidBar as RigidBar
from ._soft_biped import soft_biped as soft_biped
from ._spring_hopper import (
    spring_hopper as spring_hopper,
    spring_hopper_flow as spring_hopper_flow,
)
from ._thrown_ball import ThrownBall as ThrownBall
from ._two_legs import TwoLegs as TwoLegs
from ._walled_ball import WalledBall as WalledBall
