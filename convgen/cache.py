"""A content-addressed cache on disk, shared by any number of processes.

An entry is one file, written beside its place and moved there, so that a reader sees all of it or none. It
carries a checksum of its key and its bytes: whatever a crash, a full disk or another program left there, an entry
moved to another's place included, is a miss, not an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import time
import warnings
from pathlib import Path

DEFAULT_MAX_BYTES = 1 << 30

_MAGIC = b"convgen2"
_PREFIX = len(_MAGIC) + hashlib.sha256().digest_size
_TEMPORARY = ".writing-"
# A writer holds its temporary file for milliseconds; one this old belongs to a process that was killed.
_ABANDONED_SECONDS = 3600.0
# Other processes' writes are only seen by scanning, which is too slow to do on every put.
_PUTS_BETWEEN_SCANS = 64
_KEEP_FRACTION = 0.8


def content_key(*parts: str | bytes) -> str:
    """A hex key that differs whenever any part differs (parts are length-prefixed, so they cannot run together)."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def cache_directory() -> Path:
    """`CONVGEN_CACHE_DIR`, else `XDG_CACHE_HOME/convgen`, else `~/.cache/convgen`;
    without a home folder, one that cannot be written."""
    chosen = os.environ.get("CONVGEN_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as its specification has it: a relative one is passed over
        home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
        base = os.path.join(home if os.path.isabs(home) else os.devnull, ".cache")
    return Path(base) / "convgen"


@functools.cache
def default_cache() -> DiskCache:
    """The user's cache, opened once a process."""
    return DiskCache(cache_directory())


class DiskCache:
    """Bytes by key. Never raises: trouble with the disk is a miss, and is told once.

    The total stays near or under `max_bytes`: when a scan finds more, the entries not used for longest go.
    """

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._written_since_scan = 0
        self._puts_until_scan = 0
        self._told = False

    def path(self, key: str) -> Path:
        """Where the entry of that key lies, present or not."""
        return self.directory / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """The entry, or None. A damaged one is removed."""
        path = self.path(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        payload = raw[_PREFIX:]
        if raw[:_PREFIX] != _head(key, payload):
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # a read-only cache serves hits all the same
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store an entry; another process storing the same key at the same time does no harm."""
        path = self.path(key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(_head(key, payload))
                file.write(payload)
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                _remove(Path(temporary))
            self._tell(error)
            return
        self._bound(len(payload) + _PREFIX)

    def total_bytes(self) -> int:
        """Bytes of all entries, by scanning."""
        return sum(size for _, size, _ in self._entries())

    def _bound(self, written: int) -> None:
        self._written_since_scan += written
        self._puts_until_scan -= 1
        if self._puts_until_scan > 0 and self._written_since_scan < self.max_bytes * (1 - _KEEP_FRACTION):
            return
        self._written_since_scan = 0
        self._puts_until_scan = _PUTS_BETWEEN_SCANS
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in entries:
            if total <= self.max_bytes * _KEEP_FRACTION:
                break
            _remove(path)
            total -= size

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of every entry; abandoned temporary files are swept on the way."""
        found: list[tuple[float, int, Path]] = []
        now = time.time()
        for path in self.directory.glob("??/*"):
            try:
                status = path.stat()
            except OSError:
                continue  # another process evicted it
            if not path.name.startswith(_TEMPORARY):
                found.append((status.st_mtime, status.st_size, path))
            elif now - status.st_mtime > _ABANDONED_SECONDS:
                _remove(path)
        return found

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            warnings.warn(
                f"the cache {self.directory} cannot be written ({error.strerror or error}); compiling without it. "
                "Set CONVGEN_CACHE_DIR to a folder that can be written",
                stacklevel=3,
            )


def _head(key: str, payload: bytes) -> bytes:
    return _MAGIC + bytes.fromhex(content_key(key, payload))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # gone already, or not ours to remove
        path.unlink()
