"""Holes: what `hide` closes inside of an open folder stays closed, whatever happens while the program runs.

Each is tried without the hole first: there the theft has to succeed, or nothing is shown.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import boxes
import pytest

from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox.box import Sandbox

pytestmark = boxes.needs_boxes

WAITS = "import os; print('up', flush=True); input()\n"


def nothing(work: Path) -> None:
    pass


def hidden_file_is_made(work: Path) -> None:
    (work / ".env").write_text("STOLEN")


def hidden_file_is_renamed(work: Path) -> None:
    (work / ".env").rename(work / ".env.old")


def hidden_file_is_replaced(work: Path) -> None:
    (work / "new").write_text("STOLEN")
    (work / "new").rename(work / ".env")


def hidden_folder_is_replaced(work: Path) -> None:
    (work / ".keys").rename(work / ".keys.old")
    (work / ".keys").mkdir()
    (work / ".keys" / "id").write_text("STOLEN")


def folder_is_renamed(work: Path) -> None:
    work.rename(work.with_name("elsewhere"))
    work.symlink_to(work.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("code", "meanwhile"),
    [
        ("print(open('.env').read())", nothing),
        ("print(open('.keys/id').read())", nothing),
        ("print('STOLEN' if os.listdir('.keys') else '')", nothing),
        ("print(open('.env').read())", hidden_file_is_made),
        ("print(open('.env.old').read())", hidden_file_is_renamed),
        ("print(open('.env').read())", hidden_file_is_replaced),
        ("print(open('.keys/id').read())", hidden_folder_is_replaced),
        ("print(open('.keys.old/id').read())", hidden_folder_is_replaced),
        (f"print(open(os.path.realpath({'../work/.env'!r})).read())", folder_is_renamed),
        ("os.rename('.env', 'src/env'); print(open('src/env').read())", nothing),
        ("os.rename('.keys', 'src/keys'); print(open('src/keys/id').read())", nothing),
        ("os.link('.env', 'src/env'); print(open('src/env').read())", nothing),
        ("os.symlink('../.env', 'src/env'); print(open('src/env').read())", nothing),
        ("os.rename('src', 'old'); os.rename('.keys', 'src'); print(open('src/id').read())", nothing),
        ("open('.env', 'w').write('x'); print('STOLEN')", nothing),
        ("os.unlink('.env'); print('STOLEN')", nothing),
        ("open('src/mine', 'w').write('x'); os.rename('src/mine', '.env'); print('STOLEN')", nothing),
    ],
)  # fmt: skip
def test_a_hole_holds(tmp_path: Path, code: str, meanwhile: Callable[[Path], None]) -> None:
    assert "STOLEN" in tried(tmp_path / "open", code, meanwhile, hide=()), "the theft itself does not work"
    said = tried(tmp_path / "closed", code, meanwhile, hide=(".env", ".keys"))
    assert "STOLEN" not in said
    assert "PermissionError" in said or "cross-device" in said, "as Landlock calls a link to another folder"


def test_beside_a_hole_what_was_there_is_open_and_nothing_can_be_made(tmp_path: Path) -> None:
    """Rules name what is there at the start. bubblewrap could open the rest, too; it is closed instead."""
    code = """
open('src/made', 'w').write('x'); print(open('src/made').read(), open('beside').read())
for each in (lambda: open('made', 'w'), lambda: os.listdir('.'), lambda: open('later').read()):
    try: each(); print("OPEN")
    except PermissionError as error: print("closed", error.filename)"""
    said = tried(tmp_path / "a", code, lambda work: (work / "later").touch(), hide=(".env",))
    assert said.split("\n")[1:] == ["x y", "closed made", "closed .", "closed later", ""]


def tried(base: Path, code: str, meanwhile: Callable[[Path], object], hide: tuple[str, ...]) -> str:
    """Run the code in a box that opens a folder except `hide`, after something has happened to the folder."""
    work = base / "work"
    for name in ("src", ".keys"):
        (work / name).mkdir(parents=True)
    (work / "beside").write_text("y")
    (work / ".keys" / "id").write_text("STOLEN")
    if meanwhile is not hidden_file_is_made:
        (work / ".env").write_text("STOLEN")
    registry = ProcessRegistry()
    box = Sandbox(preset="files", hide=hide)
    group = registry.spawn(sys.executable, ("-c", WAITS + code), dict(os.environ), str(work), box)
    try:
        os.set_blocking(group.stdout, True)
        said = os.read(group.stdout, 100).decode()
        meanwhile(work)
        os.write(group.stdin, b"\n")
        assert group.watch.exited_within(120)
        return said + boxes.read_all(group, group.stdout) + boxes.read_all(group, group.stderr)
    finally:
        registry.kill_leftovers()
