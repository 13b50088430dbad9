"""Files that appear whole or not at all, and directories with one writer."""

import os
import threading

import pytest

from mt3.support.errors import InputError
from mt3.support.files import atomic_path, check_can_write, own_directory, parse_json, remove_leftovers, write_text


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "two\udcff")
    assert path.read_text() == "one\n"
    assert os.listdir(path.parent) == ["a.txt"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_has_the_rights_that_the_user_gives_new_ones(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    with atomic_path(tmp_path / "a.txt") as temporary:
        remove_leftovers(tmp_path / "b.txt")
        assert temporary.exists()
        remove_leftovers(tmp_path / "a.txt")
        assert not temporary.exists()
        temporary.touch()
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_that_cannot_be_written_is_refused_before_and_leaves_nothing(tmp_path):
    check_can_write(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []
    with pytest.raises(InputError, match=r"it is a directory; give the name of a file"):
        check_can_write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"Cannot write .*File exists; choose a directory you may write to"):
        check_can_write(tmp_path / "file" / "a.txt")


def test_a_directory_has_one_writer_and_goes_if_it_was_made_in_vain(tmp_path):
    with own_directory(tmp_path / "a" / "b"):
        with pytest.raises(InputError, match=r"Another process is writing to"), own_directory(tmp_path / "a" / "b"):
            pass
        assert (tmp_path / "a" / "b").is_dir()
    assert os.listdir(tmp_path) == []
    with own_directory(tmp_path / "a"):
        (tmp_path / "a" / "file").touch()
    assert os.listdir(tmp_path / "a") == ["file"]


def test_temporary_files_of_threads_do_not_meet(tmp_path):
    threads = [threading.Thread(target=write_text, args=(tmp_path / "a.txt", str(i) * 1000)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set((tmp_path / "a.txt").read_text())) == 1
    assert os.listdir(tmp_path) == ["a.txt"]


def test_json_has_numbers_that_can_be_used_and_written_again():
    assert parse_json('{"a": [1, -2.5, 1e300]}') == {"a": [1, -2.5, 1e300]}
    for number in ("NaN", "-Infinity", "1e999", "9" * 400):
        with pytest.raises(ValueError, match=rf"^it has the number {number:.20}$"):
            parse_json(f'{{"a": [{number}]}}')
