"""Files that are written whole, and what is no file to be replaced."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from convgen.errors import OutputError, UsageError
from convgen.files import write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for data in (b"first", b"second"):
        write_whole(path, data)
        assert path.read_bytes() == data
    assert [file.name for file in path.parent.iterdir()] == ["x.txt"]


def test_no_folder_is_made_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"x\.txt cannot be written \(No such file or directory\): choose another"):
        write_whole(tmp_path / "missing" / "x.txt", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("convgen.files.os.fsync", full)
    with pytest.raises(OutputError, match=r"x\.txt cannot be written \(No space left on device\): choose another"):
        write_whole(path, b"after")
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_leads_to_what_was_written(tmp_path: Path, there: bool) -> None:
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "x.txt"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"before")
    link.symlink_to(target)
    write_whole(link, b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"


def test_a_device_is_written_as_it_stands() -> None:
    before = os.stat("/dev/null")
    write_whole(Path("/dev/null"), b"gone")
    assert os.path.samestat(os.stat("/dev/null"), before)
    with pytest.raises(OutputError, match=r"/dev/full cannot be written \(No space left on device\)"):
        write_whole(Path("/dev/full"), b"more")
    assert not Path("/dev/full").is_file()


def test_a_pipe_is_written_as_it_stands(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"through")
    reader.join()
    assert read == [b"through"]
    assert pipe.is_fifo()


def test_what_goes_to_stdout_stands_among_what_is_printed(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from convgen.files import write_whole; "
        "print('before'); write_whole(Path('/dev/stdout'), b'file\\n'); print('after')"
    )
    out = tmp_path / "out.txt"
    out.write_text("kept\n")
    with out.open("a") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert out.read_text() == "kept\nbefore\nfile\nafter\n"


def test_a_database_is_not_overwritten(tmp_path: Path) -> None:
    path, link = tmp_path / "songs.sqlite", tmp_path / "link"
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE songs (name TEXT)")
    plain.close()
    link.symlink_to(path)
    before = path.read_bytes()
    for place in (path, link):
        with pytest.raises(UsageError, match=f"{place.name} is an SQLite database"):
            write_whole(place, b"text")
    assert path.read_bytes() == before
