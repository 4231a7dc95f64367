"""What the tuning database raises and warns."""

from __future__ import annotations


class DatabaseError(Exception):
    """A tuning database that cannot be used as asked; the message says which, why, and the next step.

    `damaged` tells whether the file itself is broken, so that no later try can succeed.
    """

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


class StorageError(DatabaseError):
    """A database that is to be written, and whose place fails: a full disk, a folder without permission, a server that
    is gone."""


class TuningDatabaseWarning(UserWarning):
    """Trouble with a tuning database that did not stop the work: it goes on without what the database knows."""
