"""What the tuner found, kept for good: which kernel is fastest for which problem on which GPU.

    from tuning_db import open_database, query

    with open_database() as database:
        for row in query.standings(database, query.Filter(op="conv2d", dtype="bf16", device="h200")):
            print(row.winner.task.problem, row.winner.strategy, row.winner.seconds, row.over_best_peer)

The file is SQLite with three views for any other tool: `winners`, `trials`, `peers` (see `schema`). This package knows
keys and JSON: it imports no CUDA and nothing of convgen.
"""

from tuning_db.database import Database
from tuning_db.errors import DatabaseError, StorageError, TuningDatabaseWarning
from tuning_db.layers import Layers, open_layers
from tuning_db.opening import open_database
from tuning_db.records import Found, Peer, Run, Task, Toolchain, Trial
from tuning_db.shipped import Shipped

__all__ = [
    "Database",
    "DatabaseError",
    "Found",
    "Layers",
    "Peer",
    "Run",
    "Shipped",
    "StorageError",
    "Task",
    "Toolchain",
    "Trial",
    "TuningDatabaseWarning",
    "open_database",
    "open_layers",
]
