"""Mechanical systems with contact."""

from ._contact_mode import ContactMode as ContactMode
from ._decoupled import decoupled as decoupled, Decoupling as Decoupling
from ._mechanical import MechanicalSystem as MechanicalSystem
from ._soft import soft_contacts as soft_contacts
