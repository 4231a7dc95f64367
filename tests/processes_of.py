"""What runs on this machine, for the tests that leave nothing behind."""

from __future__ import annotations

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """All living processes below that one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, pending = set[int](), {pid}
    while pending:
        pending = {child for child, parent in parents.items() if parent in pending and is_alive(child)} - found
        found |= pending
    return found


def end_within(seconds: float, pids: set[int]) -> bool:
    """Whether those processes have all ended by then."""
    deadline = time.monotonic() + seconds
    while alive := any(map(is_alive, pids)):
        if time.monotonic() >= deadline:
            return not alive
        time.sleep(0.02)
    return True
