"""What others wrote cannot look like a line of the log, nor give orders to a terminal."""

import logging

from monograph.log import get_log, set_up_log, write_log_to

FORGED = "a\x1b[2J\r\n01:00:00 I all is well\u202e"


def test_text_from_outside_forges_no_record_and_no_terminal_codes(tmp_path, capsys):
    set_up_log(holds=True)
    write_log_to(tmp_path / "logs" / "rank-0.log")
    get_log("data").info("reading %s", FORGED)
    for handler in get_log().handlers:
        handler.flush()
    for text in (capsys.readouterr().err, (tmp_path / "logs" / "rank-0.log").read_text()):
        first, second = text.splitlines()
        assert first.endswith(r" I reading a\x1b[2J\r")
        assert second == r"           01:00:00 I all is well\u202e"
    set_up_log()


def test_a_traceback_in_the_log_is_one_record(capsys):
    set_up_log()
    try:
        raise ValueError("x\n01:00:00 I all is well")
    except ValueError:
        get_log("data").log(logging.ERROR, "failed", exc_info=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 3 and all(line.startswith("    ") for line in lines[1:])
