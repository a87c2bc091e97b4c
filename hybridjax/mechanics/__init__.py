"""Mechanical systems with contact."""

from ._soft import soft_contacts as soft_contacts
