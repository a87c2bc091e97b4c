"""Mechanical systems with contacts and constraints."""

from ._consistent_state import consistent_state as consistent_state
from ._contact_mode import ContactMode as ContactMode
from ._decoupled import decoupled as decoupled, Decoupling as Decoupling
from ._formulation import IndexOne as IndexOne, Penalty as Penalty
from ._mechanical import MechanicalSystem as MechanicalSystem
from ._multibody import Multibody as Multibody
from ._soft import soft_contacts as soft_contacts
