"""Decisions from the tuning database, and tuning what it lacks."""

from __future__ import annotations

from convgen.api.decision import Decider


def connect() -> Decider:
    """The decider of the databases that the environment names."""
    from convgen.tuner.decider import DatabaseDecider

    return DatabaseDecider()
