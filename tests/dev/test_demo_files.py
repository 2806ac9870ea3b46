"""The demo finds what is a file, whatever it is called, and measures it as other tools do."""

import os
import socket
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from reliable_worker.dev import demo_files
from reliable_worker.dev.demo_files import find, measure, path_of, shown, url
from reliable_worker.enqueue.payload import encode
from tests.dev.odd_names import ODD_NAMES, content, fill

NOBODY = 65534


@pytest.fixture
def open_folder(cluster_root: Path) -> Path:
    """A folder that an account without privileges can reach."""
    folder = cluster_root / "demo-files"
    folder.mkdir(mode=0o755)
    return folder


def test_every_name_is_found_and_survives_a_payload(tmp_path: Path) -> None:
    fill(tmp_path)
    found = find(os.fsencode(tmp_path))
    assert [os.path.basename(file.path) for file in found.files] == sorted(ODD_NAMES)
    assert not found.skipped
    for file in found.files:
        assert encode({"url": url(file.path)}).isascii()
        assert path_of(url(file.path)) == file.path
        name = os.path.basename(file.path)
        assert measure(path_of(url(file.path))).sha256 == sha256(content(name)).hexdigest()
        shown(file.path).encode()


def test_what_is_no_text_file_is_passed_over_and_counted(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n", "utf-8")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(demo_files.MOST_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "dangling").symlink_to("nowhere")
    for folder in (".git", "__pycache__", "inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("x", "utf-8")
    found = find(os.fsencode(tmp_path))
    names = [os.path.relpath(file.path, os.fsencode(tmp_path)) for file in found.files]
    assert names == [b"empty", b"inner/file", b"text"]
    assert found.skipped == {
        "binary": 1,
        "huge": 1,
        "special": 2,
        "symbolic links": 3,
        "hidden folders": 1,
        "caches": 1,
    }


def test_what_may_not_be_read_is_passed_over(open_folder: Path) -> None:
    (open_folder / "open").write_text("x", "utf-8")
    (open_folder / "closed").write_text("x", "utf-8")
    (open_folder / "shut").mkdir()
    (open_folder / "closed").chmod(0)
    (open_folder / "shut").chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        found = find(os.fsencode(open_folder))
    finally:
        if root:
            os.seteuid(0)
        (open_folder / "shut").chmod(0o700)
    assert [os.path.basename(file.path) for file in found.files] == [b"open"]
    assert found.skipped == {"unreadable": 2}


def test_one_file_and_an_empty_folder(tmp_path: Path) -> None:
    assert find(os.fsencode(tmp_path)).files == ()
    alone = tmp_path / "alone"
    alone.touch()
    (file,) = find(os.fsencode(alone)).files
    assert file.path == os.fsencode(alone)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="special"):
        find(os.fsencode(tmp_path / "pipe"))
    with pytest.raises(FileNotFoundError):
        find(os.fsencode(tmp_path / "nothing"))


def test_a_huge_tree_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_files, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).touch()
    found = find(os.fsencode(tmp_path))
    assert len(found.files) == 3
    assert found.skipped == {"beyond the limit": 1}
    monkeypatch.setattr(demo_files, "MOST_NAMES", 2)
    assert len(find(os.fsencode(tmp_path)).files) == 2


@pytest.mark.parametrize("piece_bytes", [1, 3, 4096])
@pytest.mark.parametrize(
    "text", [b"", b"word", b" a  b\tc\n\nd e", b"no end of line", b"\n\n", b"ab cd ef gh"]
)
def test_measures_are_those_of_wc(
    text: bytes, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the pieces it reads happen to end."""
    monkeypatch.setattr(demo_files, "CHUNK_BYTES", piece_bytes)
    file = tmp_path / "file"
    file.write_bytes(text)
    told = subprocess.run(
        ["wc", "-l", "-w", "-c", file], check=True, capture_output=True, text=True, timeout=10
    )
    found = measure(os.fsencode(file))
    assert [found.lines, found.words, found.bytes] == [int(n) for n in told.stdout.split()[:3]]
    assert found.sha256 == sha256(text).hexdigest()


def test_what_has_changed_since_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        measure(os.fsencode(tmp_path / "gone"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no longer a file"):
        measure(os.fsencode(tmp_path / "pipe"))
    monkeypatch.setattr(demo_files, "MOST_BYTES", 3)
    (tmp_path / "grown").write_bytes(b"12345")
    with pytest.raises(OSError, match="too large"):
        measure(os.fsencode(tmp_path / "grown"))
