"""Files are whole or not there, whatever happens while they are written."""

import threading
from pathlib import Path

import pytest
from lngeom._core import files as _files


def test_a_file_is_replaced_whole_and_told(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    with _files.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    with _files.replacing(path) as file:
        file.write(b"newer")
    assert _files.written().count(path) == 1
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "result.json"
    path.write_text("old")

    def half():
        with _files.replacing(path) as file:
            file.write(b"half of")
            raise error

    with pytest.raises(error):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_made_leaves_nothing_to_clean_up(tmp_path):
    with pytest.raises(FileNotFoundError), _files.replacing(tmp_path / "none" / "result"):
        pass
    assert not _files.unfinished()


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    _files.check_writable(Path("new/folder"))
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        _files.check_writable(Path("file/folder"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_stands_when_it_is_whole(tmp_path):
    with _files.replacing_folder(tmp_path / "new") as folder:
        (folder / "part").write_text("a part")
        assert not (tmp_path / "new").exists()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["part"]
    with pytest.raises(FileExistsError, match="name a folder"), _files.replacing_folder(tmp_path / "new"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_no_folder(tmp_path, error):
    def half():
        with _files.replacing_folder(tmp_path / "new") as folder:
            (folder / "part").write_text("a part")
            raise error

    with pytest.raises(error):
        half()
    assert not list(tmp_path.iterdir())
    assert not _files.unfinished()


def test_a_temporary_folder_is_gone_after_its_block_and_after_an_abandoned_one(tmp_path, monkeypatch):
    with _files.temporary_folder(tmp_path) as folder:
        (folder / "part").write_text("a part")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(_files, "_lock", threading.Lock())
    with _files.temporary_folder(tmp_path) as folder:
        (folder / "part").write_text("a part")
        _files.abandon()
        assert not folder.exists()
        _files._lock.release()  # the process does not end here
    assert not _files.unfinished()
