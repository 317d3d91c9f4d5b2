"""Words: what is printed cannot drive a terminal, and numbers read as people say them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpt.common.words import count, duration, printable, printable_text, several, shell_line, shell_word, size


@pytest.mark.parametrize(("text", "shown"), [
    ("plain\n\ttext", "plain\\n\\ttext"), ("\x1b[2J\x07\r", "\\x1b[2J\\x07\\r"), ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
    ("caf\u00e9 \u6f22 \U0001f44d", "caf\u00e9 \u6f22 \U0001f44d"), ("\udcff", "\\udcff"), ("a\u00a0b", "a\u00a0b"),
    ("\u2028\u202etxt.exe", "\\u2028\\u202etxt.exe")])
def test_printable_is_one_line_that_cannot_drive_a_terminal(text, shown):
    assert printable(text) == shown
    shown.encode("utf-8")


def test_printable_text_keeps_its_lines_and_the_direction_of_writing():
    assert printable_text("a\n\tb\x1b\u200f\u05d0") == "a\n\tb\\x1b\u200f\u05d0"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_suggested_command_is_one_line_and_means_the_same_to_a_shell():
    names = ["out", "my run", "it's", "$(reboot)", "", "caf\u00e9", "a\u00a0b", "`x`!", "a\nb", "\x1b[31m", "it's\n\\n",
             "\udce9", "a\x85b", "\u2028"]
    done = subprocess.run(["bash", "-c", shell_line(["printf", "%s\\0", *names])], capture_output=True, check=True)
    assert [*map(os.fsdecode, done.stdout.split(b"\0"))][:-1] == names
    assert shell_line(["python", "generate.py", "--ckpt", "my run"]) == "python generate.py --ckpt 'my run'"
    assert [*map(shell_word, ("-d", Path("-d"), "my run", "a-d"))] == ["./-d", "./-d", "'my run'", "a-d"]
    assert shell_line(["--ckpt", "out", "-"]) == "--ckpt out -"
    assert shell_line(["a\nb", "\x1b[31m", "\udce9"]) == r"$'a\x0ab' $'\x1b[31m' $'\xe9'"


def test_durations_sizes_and_counts_read_as_people_say_them():
    assert [duration(s) for s in (-1, 0, 8.4, 59.6, 750, 3600, 39_000, 273_600)] == [
        "0 s", "0 s", "8 s", "1 min 0 s", "12 min 30 s", "1 h 0 min", "10 h 50 min", "3 d 4 h"]
    assert [size(n) for n in (0, 512, 12_288, 3.1 * 2**20, 15.2 * 2**30, 2**20 - 1, 2**30 - 1)] == [
        "0 bytes", "512 bytes", "12 KiB", "3.1 MiB", "15.2 GiB", "1.0 MiB", "1.0 GiB"]
    assert [count(n) for n in (512, 32_000, 1_070_000, 124_439_808, 2.5e9, 3e12, 999_960, 999_400)] == [
        "512", "32.0K", "1.07M", "124.4M", "2.50B", "3.00T", "1.00M", "999.4K"]
    assert [several(n, "file") for n in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
