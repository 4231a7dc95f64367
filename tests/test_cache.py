"""The disk cache under damage, limits and many processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path

import pytest

from convgen.cache import DiskCache, cache_directory, content_key


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache, key = DiskCache(tmp_path), content_key("a")
    assert cache.get(key) is None
    cache.put(key, b"payload")
    assert DiskCache(tmp_path).get(key) == b"payload"
    cache.put(key, b"")
    assert cache.get(key) == b""


def test_parts_of_a_key_do_not_run_together() -> None:
    keys = {content_key("ab", "c"), content_key("a", "bc"), content_key("abc"), content_key("a", "b", "c")}
    assert len(keys) == 4
    assert content_key("x") == content_key(b"x")


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign", "longer"])
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path: Path, damage: str) -> None:
    cache, key = DiskCache(tmp_path), content_key("a")
    cache.put(key, bytes(range(256)))
    path = cache.path(key)
    raw = path.read_bytes()
    flipped = bytes([*raw[:-1], raw[-1] ^ 1])
    damaged = {"truncate": raw[:-5], "flip": flipped, "empty": b"", "foreign": b"\x7fELF" * 20, "longer": raw + b"x"}
    path.write_bytes(damaged[damage])
    assert cache.get(key) is None
    assert not path.exists()
    cache.put(key, b"again")
    assert cache.get(key) == b"again"


def test_an_entry_in_the_place_of_another_is_a_miss(tmp_path: Path) -> None:
    cache, first, second = DiskCache(tmp_path), content_key("a"), content_key("b")
    cache.put(first, b"of a")
    cache.put(second, b"of b")
    spare = tmp_path / "spare"
    cache.path(first).rename(spare)
    cache.path(second).rename(cache.path(first))
    spare.rename(cache.path(second))
    assert (cache.get(first), cache.get(second)) == (None, None)
    cache.put(first, b"of a")
    assert cache.get(first) == b"of a"


def test_the_oldest_unused_entries_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=10_000)
    keys = [content_key(str(i)) for i in range(40)]
    for age, key in enumerate(keys[:8]):
        cache.put(key, bytes(1000))
        os.utime(cache.path(key), (time.time() - 1000 + age,) * 2)
    assert cache.get(keys[0]) is not None  # used just now: the youngest
    for key in keys[8:]:
        cache.put(key, bytes(1000))
    assert cache.total_bytes() <= 10_000 + 2 * 1048
    assert cache.get(keys[1]) is None
    assert cache.get(keys[-1]) is not None


def test_the_most_recently_read_entry_outlives_older_ones(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=5_000)
    old, read, new = (content_key(name) for name in ("old", "read", "new"))
    for key in (old, read):
        cache.put(key, bytes(2000))
        os.utime(cache.path(key), (1e9, 1e9))
    assert cache.get(read) is not None
    DiskCache(tmp_path, max_bytes=5_000).put(new, bytes(1500))
    assert [cache.get(key) is not None for key in (old, read, new)] == [False, True, True]


def test_files_of_killed_writers_are_swept(tmp_path: Path) -> None:
    cache, key = DiskCache(tmp_path), content_key("a")
    folder = cache.path(key).parent
    folder.mkdir(parents=True)
    dead, alive = folder / ".writing-dead", folder / ".writing-alive"
    for path in (dead, alive):
        path.write_bytes(b"half")
    os.utime(dead, (1e9, 1e9))
    cache.put(key, b"x")
    assert not dead.exists()
    assert alive.exists()
    assert cache.total_bytes() == len(cache.path(key).read_bytes())


def test_a_folder_that_cannot_be_written_warns_once_and_misses(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    cache, key = DiskCache(blocker / "cache"), content_key("a")
    with pytest.warns(UserWarning, match="CONVGEN_CACHE_DIR"):
        cache.put(key, b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(key, b"x")
        assert cache.get(key) is None


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("CONVGEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path("/home/someone/.cache/convgen")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == Path("/home/someone/.cache/convgen")
    for homeless in ("", "~"):  # what is left of ~ where the user is unknown
        monkeypatch.setenv("HOME", homeless)
        assert not os.access(cache_directory().parents[1], os.F_OK | os.X_OK)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/convgen")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", "/chosen")
    assert cache_directory() == Path("/chosen")


def _payload(number: int) -> bytes:
    return number.to_bytes(4, "little") * 5000


def _hammer(directory: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    cache = DiskCache(directory, max_bytes=300_000)
    for round_ in range(150):
        number = (seed * 7 + round_ * 3) % 20
        key = content_key(str(number))
        found = cache.get(key)
        if found is None:
            cache.put(key, _payload(number))
        elif found != _payload(number):
            failures.put(f"process {seed} read another entry's bytes")


def test_eight_processes_share_one_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=_hammer, args=(tmp_path, seed, failures)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert failures.empty()
    assert not list(tmp_path.glob("??/.writing-*"))
    bounded = DiskCache(tmp_path, max_bytes=300_000)
    bounded.put(content_key("one more"), b"")
    assert 0 < bounded.total_bytes() <= 300_000


def _write_for_ever(directory: Path) -> None:
    cache = DiskCache(directory)
    while True:
        for number in range(5):
            cache.put(content_key(str(number)), _payload(number) * 20)


def test_a_killed_writer_leaves_whole_entries(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(tmp_path,))
    worker.start()
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("??/[!.]*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    cache = DiskCache(tmp_path)
    entries = [cache.get(content_key(str(number))) for number in range(5)]
    assert any(entries)
    assert all(entry in (None, _payload(number) * 20) for number, entry in enumerate(entries))
