"""What the commands print is safe to print, and JSON stays JSON."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grue.cli import saying
from grue.cli.init import _say_what_is_next
from grue.cli.saying import for_this_python, say_if_read, say_json, shown_argument

NEW_EMOJI, TURNED, TAG = "\U0001fae9", "\u202e", "\U000e0041"
"""Characters that some version of Python does not call printable, of both lengths in UTF-16."""


def test_json_is_json_whatever_characters_are_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789abcdef")
    say_json({"text": f"a{NEW_EMOJI}{TURNED}{TAG}\x1b\n", "key": "sk-0123456789abcdef"})
    printed = capsys.readouterr().out
    assert json.loads(printed)["text"] == f"a{NEW_EMOJI}{TURNED}{TAG}\x1b\n"
    assert printed.removesuffix("\n").isprintable()
    assert "0123456789abcdef" not in printed


@pytest.mark.parametrize("place", ["venv/bin", "elsewhere/bin", None])
def test_a_package_is_installed_for_the_python_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path / (place or "none")))
    if place is not None:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "pip").touch(mode=0o755)
    pip = "pip" if place == "venv/bin" else "venv/bin/python -m pip"
    assert for_this_python("It is missing: pip install 'a>=1'.") == f"It is missing: {pip} install 'a>=1'."


def test_a_path_that_begins_with_a_dash_is_no_option() -> None:
    assert [shown_argument(Path(path)) for path in ("-run", "a b", "/-x")] == ["./-run", "'a b'", "/-x"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed: apt-get install bash")
@pytest.mark.parametrize("name", ["a\nb", "a'b\t\\c", "\x1b[31m", "a\u202eb", "caf\udce9", "-\n", "é\x0712"])
def test_a_path_with_unprintable_characters_can_be_pasted_into_a_shell(name: str) -> None:
    argument = shown_argument(Path(name))
    assert argument.isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {argument}"], stdout=subprocess.PIPE, check=True).stdout
    assert said.removeprefix(b"./") == os.fsencode(name)


def test_no_command_to_be_copied_calls_grue_by_its_bare_name() -> None:
    bare = re.compile(r"""(?:["'] *|: |\. )grue [a-z-]+ (?:[a-z-]+ )?(?:-|\{|[A-Z])""")
    sources = sorted(Path(saying.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    assert not [found[0] for path in sources for found in bare.finditer(path.read_text())]


def test_init_prints_a_folder_that_begins_with_a_dash_for_cd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _say_what_is_next(Path("-bot"))
    assert "  cd ./-bot\n" in capsys.readouterr().out


def test_output_is_printed_although_the_reader_of_the_errors_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with (tmp_path / "out").open("w") as out, os.fdopen(writer, "w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        say_if_read("a note", err=True)
        say_if_read("the result")
    assert (tmp_path / "out").read_text() == "the result\n"
