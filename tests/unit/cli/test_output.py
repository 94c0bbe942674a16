"""The output folder."""

import pytest

from dpinfer.cli.arguments import CommandError, UsageError, public_arguments
from dpinfer.cli.output import OutputFolder
from dpinfer.errors import BudgetExceededError


def test_folders_that_stay_empty_are_removed(tmp_path):
    with OutputFolder(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a").exists()
    assert tmp_path.exists()


def test_folders_with_something_in_them_stay(tmp_path):
    with OutputFolder(tmp_path / "a") as folder:
        folder.write("x.txt", "text")
    assert (tmp_path / "a" / "x.txt").read_text() == "text"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.txt"]


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(28, "No space left on device")

    with OutputFolder(tmp_path) as folder:
        folder.write("x.txt", "old")
        monkeypatch.setattr("dpinfer.release.files.os.fsync", fail)
        with pytest.raises(CommandError, match="No space left"):
            folder.write("x.txt", "new")
    assert (tmp_path / "x.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_interrupted_check_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(folder, size):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpinfer.cli.output._try_to_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        OutputFolder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_check_without_fallocate(tmp_path, monkeypatch):
    monkeypatch.delattr("dpinfer.cli.output.os.posix_fallocate", raising=False)
    (tmp_path / "a").mkdir()
    with OutputFolder(tmp_path / "a", need_bytes=3):
        pass
    assert not list((tmp_path / "a").iterdir())


def test_one_command_at_a_time(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with OutputFolder(tmp_path / "a") as first:
        for name in ("a", "link"):
            with pytest.raises(UsageError, match="in use by another"):
                OutputFolder(tmp_path / name)
        first.write("x.txt", "text")
    with OutputFolder(tmp_path / "link") as second:
        assert [path.name for path in second.path.iterdir() if not path.name.startswith(".")] == ["x.txt"]
    # A lock file that a killed command left behind holds nobody up.
    (tmp_path / "a" / ".dpinfer.lock").write_text("")
    with OutputFolder(tmp_path / "a"):
        pass
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.txt"]


def test_public_arguments():
    with pytest.raises(UsageError, match="epsilon"), public_arguments():
        raise ValueError("epsilon must be positive")
    with pytest.raises(BudgetExceededError), public_arguments():
        raise BudgetExceededError("too small")
