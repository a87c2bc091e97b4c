"""When guards fire.

The rules of firing (`firing`); cubics that represent guards over a step well enough, or
say that they do not (`cubic`, `crossings`); and the two event methods as users choose
them, `Locate` and `Project`. May import `_systems` and what is below. Begin with
`firing.py`; docs/concepts/finding_events.md has the reasons.
"""
