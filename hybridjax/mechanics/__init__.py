"""Mechanical systems with contacts and constraints."""

from .._jax.signature import make_readable
from ._consistent_state import consistent_state as consistent_state
from ._contacts.contact_mode import ContactMode as ContactMode
from ._decoupled import decoupled as decoupled, Decoupling as Decoupling
from ._dynamics.formulation import IndexOne as IndexOne, Penalty as Penalty
from ._dynamics.joints import (
    ball_joint as ball_joint,
    free_joint as free_joint,
    rotate as rotate,
)
from ._dynamics.multibody import Multibody as Multibody
from ._mechanical import MechanicalSystem as MechanicalSystem
from ._soft import soft_contacts as soft_contacts


make_readable(*list(globals().values()))
