"""The families of systems: one file each, with its reference."""

from .affine import AFFINE
from .balls import BALLS
from .belt import BELT
from .billiards import BILLIARDS
from .converter import CONVERTER
from .joints import JOINTS
from .paddle import PADDLE
from .planks import PLANKS
from .points import POINTS
from .pucks import PUCKS
from .rods import BARS, RODS
from .spiking import SPIKING
from .stacks import STACKS
from .stick_slip import STICK_SLIP


FAMILIES = {
    family.name: family
    for family in (
        BALLS,
        BILLIARDS,
        PADDLE,
        AFFINE,
        SPIKING,
        CONVERTER,
        STICK_SLIP,
        BELT,
        JOINTS,
        POINTS,
        STACKS,
        PUCKS,
        BARS,
        RODS,
        PLANKS,
    )
}
