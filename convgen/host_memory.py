"""How much memory this machine can still give to the process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_HIERARCHIES = (
    # what /proc/self/cgroup calls it, where it is mounted, and the files of a group: limit, use, key of dropped caches
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(root: Path = Path("/")) -> int:
    """What Linux takes to be available, or less, by the limits of the control groups that the process is in.

    Caches that would be dropped count as available. `sys.maxsize` where the system does not tell.
    """
    return min([_of_the_machine(root), *_of_its_groups(root)])


def _of_the_machine(root: Path) -> int:
    try:
        return _value(root / "proc/meminfo", "MemAvailable:") * 1024
    except (OSError, ValueError):
        return sys.maxsize


def _of_its_groups(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name, mount, *files in _HIERARCHIES:
            if name in controllers.split(","):
                group = Path(path.strip("/"))
                for place in (group, *group.parents):
                    yield _of_group(root / mount / place, *files)


def _of_group(folder: Path, limit: str, use: str, cache: str) -> int:
    try:
        room = int((folder / limit).read_text()) - int((folder / use).read_text())
        return room + _value(folder / "memory.stat", cache)
    except (OSError, ValueError):  # no such group as it is seen from here, or no limit
        return sys.maxsize


def _value(file: Path, key: str) -> int:
    """Of the line `key value …`. Raises ValueError if there is none."""
    for line in file.read_text().splitlines():
        if line.startswith(f"{key} "):
            return int(line.split()[1])
    raise ValueError(key)
