"""Lines that are in a file whole or not at all, whatever the disk does."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.line_file import LineFile, Steps
from tests.disks import FailingCalls


def make(path, calls, **settings):
    return LineFile(path / "lines", calls=calls, **settings)


def read(path):
    return (path / "lines").read_text().splitlines(keepends=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "write"])
def test_lines_wait_while_the_disk_refuses_and_appear_in_order(tmp_path, call, code):
    calls = FailingCalls(code=code)
    lines = make(tmp_path, calls)
    if call == "write":
        lines.write("1", step=1)
    calls.broken = {call}
    for step in (2, 3):
        lines.write(str(step), step=step)
        assert lines.error.errno == code
    assert lines.describe_missing().startswith("lines lacks steps 2-3: ")
    calls.heal()
    lines.write("4", step=4)
    assert lines.error is None and lines.describe_missing() == ""
    lines.close()
    assert read(tmp_path) == (["1\n"] if call == "write" else []) + ["2\n", "3\n", "4\n"]


def test_a_line_that_fits_only_in_part_is_not_in_the_file_at_all(tmp_path):
    calls = FailingCalls()
    lines = make(tmp_path, calls)
    lines.write("first", step=1)
    calls.broken, calls.room = {"write"}, 4
    lines.write("second", step=2)
    assert read(tmp_path) == ["first\n"]
    calls.heal()
    lines.close()
    assert read(tmp_path) == ["first\n", "second\n"]


def test_part_of_a_line_that_cannot_be_taken_back_is_taken_back_later(tmp_path):
    calls = FailingCalls()
    lines = make(tmp_path, calls)
    lines.write("first", step=1)
    calls.broken, calls.room = {"write", "truncate"}, 4
    lines.write("second", step=2)
    assert read(tmp_path) == ["first\n", "seco"]
    assert "its last line is incomplete" in lines.describe_missing()
    calls.broken = {"truncate"}
    lines.write("third", step=3)
    assert read(tmp_path) == ["first\n", "seco"], "nothing is added to part of a line"
    calls.heal()
    lines.close()
    assert read(tmp_path) == ["first\n", "second\n", "third\n"]


def test_memory_for_waiting_lines_is_bounded_and_what_was_given_up_is_known(tmp_path):
    calls = FailingCalls("write")
    lines = make(tmp_path, calls, max_waiting_bytes=30)
    for step in range(1, 11):
        lines.write("123456789", step=step)
    assert lines.waiting == 3
    calls.heal()
    lines.write("123456789", step=11)
    lines.close()
    assert len(read(tmp_path)) == 4
    assert lines.describe_missing() == "lines lacks steps 1-7: No space left on device"


def test_what_never_found_room_is_named_when_the_file_is_closed(tmp_path):
    calls = FailingCalls()
    lines = make(tmp_path, calls)
    for step in (1, 2, 3, 4, 5):
        calls.broken = {"write"} if step in (2, 3, 5) else set()
        lines.write(str(step), step=step)
    lines.close()
    lines.close()
    assert read(tmp_path) == ["1\n", "2\n", "3\n", "4\n"]
    assert lines.describe_missing() == "lines lacks step 5: No space left on device"


def test_a_disk_that_says_only_at_the_end_that_it_was_full_is_believed(tmp_path):
    lines = make(tmp_path, FailingCalls("close", code=errno.EDQUOT))
    lines.write("1", step=1)
    assert lines.describe_missing() == ""
    lines.close()
    assert lines.describe_missing() == "lines may lack its last lines: Disk quota exceeded"


def test_lines_without_steps_are_counted(tmp_path):
    lines = make(tmp_path, FailingCalls("open"))
    lines.write("one")
    lines.write("two")
    assert lines.describe_missing() == "lines lacks 2 lines: No space left on device"


def test_what_a_killed_process_left_of_a_line_is_not_continued(tmp_path):
    (tmp_path / "lines").write_text("first\nseco")
    lines = make(tmp_path, FailingCalls())
    lines.write("third")
    lines.close()
    assert read(tmp_path) == ["first\n", "seco\n", "third\n"]


@given(
    st.lists(st.tuples(st.text("ab", max_size=6), st.integers(0, 12)), max_size=12),
    st.sampled_from(["write", "truncate"]),
)
def test_a_file_on_a_disk_that_is_nearly_full_holds_a_prefix_of_whole_lines(tmp_path_factory, written, also):
    folder = tmp_path_factory.mktemp("lines")
    calls = FailingCalls("write", also)
    lines = make(folder, calls)
    for text, room in written:
        calls.room = room
        lines.write(text)
    expected = [f"{text}\n" for text, _ in written]
    if also == "write" and written:
        assert read(folder) == expected[: len(read(folder))]
    calls.heal()
    lines.close()
    assert (read(folder) if written else []) == expected


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([7], "step 7"),
        ([7, 7], "step 7"),
        ([1, 2, 3, 8, 10, 11], "steps 1-3, 8, 10-11"),
        (range(1, 40, 2), "steps 1, 3, 5, 7, ..., 35, 37, 39"),
    ],
)
def test_steps_are_shown_as_ranges(steps, text):
    found = Steps()
    for step in steps:
        found.add(step)
    assert str(found) == text


def test_lines_are_never_added_to_what_a_link_leads_to(tmp_path):
    (tmp_path / "notes").write_text("mine\n")
    (tmp_path / "lines").symlink_to("notes")
    lines = make(tmp_path, None)
    lines.write("1", step=1)
    assert "a link to 'notes'" in lines.describe_missing()
    assert (tmp_path / "notes").read_text() == "mine\n"
