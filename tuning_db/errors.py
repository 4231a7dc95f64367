"""What the tuning database raises and warns."""

from __future__ import annotations


class DatabaseError(Exception):
    """A tuning database that cannot be used as asked; the message says which, why, and the next step."""


class TuningDatabaseWarning(UserWarning):
    """Trouble with a tuning database that did not stop the work: it goes on without what the database knows."""
