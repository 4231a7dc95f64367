"""The memory that can be had, read from what Linux tells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from convgen.host_memory import available_bytes

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\nBuffers: 7 kB\n"


def _system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _group(folder: str, limit: str, use: int, cache: int) -> dict[str, str]:
    """A group of the second version."""
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{use}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 11\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 9000 * 1024),
        ({"proc/self/cgroup": "0::/\n"} | _group("sys/fs/cgroup", "max", 10, 0), 9000 * 1024),
        ({"proc/self/cgroup": "0::/\n"} | _group("sys/fs/cgroup", "5000", 4000, 300), 1300),
        # The limit of a group holds for those within it.
        (
            {"proc/self/cgroup": "0::/a/b\n"}
            | _group("sys/fs/cgroup/a/b", "9000", 10, 0)
            | _group("sys/fs/cgroup/a", "6000", 5000, 0),
            1000,
        ),
        # Of a container that sees its own group as the root, under the name it has outside.
        ({"proc/self/cgroup": "0::/docker/1f2e\n"} | _group("sys/fs/cgroup", "5000", 4000, 0), 1000),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/a\n0::/\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8000\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
            },
            3500,
        ),
    ],
)
def test_the_tightest_limit_is_what_is_left(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_bytes(_system(tmp_path, {"proc/meminfo": MEMINFO} | files)) == expected


def test_where_nothing_is_told_there_is_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == sys.maxsize
