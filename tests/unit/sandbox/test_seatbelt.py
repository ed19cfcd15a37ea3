"""A box as the text of a Seatbelt profile. macOS is not here: what it does with the text is not tested."""

import re
from pathlib import Path
from typing import Any

import commands
import pytest

from grue.errors import SandboxError
from grue.sandbox.box import Sandbox
from grue.sandbox.places import places_of
from grue.sandbox.seatbelt import SCRATCH, profile

TOKEN = re.compile(r'\s+|;[^\n]*\n|(\(|\)|"(?:[^"\\]|\\["\\])*"|[^\s()";]+)')


def read(text: str) -> list[Any]:
    """Read all expressions of a profile; fail if a bracket or a quote is open."""
    stack: list[list[Any]] = [[]]
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        assert found is not None, text[at : at + 80]
        at = found.end()
        if found[1] == "(":
            stack.append([])
        elif found[1] == ")":
            done = stack.pop()
            stack[-1].append(done)
        elif found[1] is not None:
            stack[-1].append(found[1])
    assert len(stack) == 1, "a bracket is open"
    return stack[0]


def profile_of(box: Sandbox, cwd: Path, *, hidden: tuple[str, ...] = ()) -> str:
    places = places_of(box, program="/bin/sh", args=(), cwd=str(cwd), env={}, scratch=SCRATCH)
    return profile(box, places, words="a box", hidden=hidden)


def allowed(text: str, operation: str) -> list[Any]:
    return [
        each
        for rule in read(text)
        if rule[0] == "allow" and operation in rule
        for each in rule[1:]
        if isinstance(each, list)
    ]


def test_nothing_is_allowed_but_what_the_box_lists(tmp_path: Path) -> None:
    text = profile_of(Sandbox(), tmp_path)
    rules = read(text)
    assert rules[:2] == [["version", "1"], ["deny", "default"]]
    assert allowed(text, "file-write*")[-1] == ["subpath", ["param", '"SCRATCH"']]
    assert ["subpath", '"/usr"'] in allowed(text, "file-read*")
    assert ["subpath", '"/usr"'] in allowed(text, "process-exec*")
    assert ["subpath", '"/usr"'] not in allowed(text, "file-write*")
    assert str(tmp_path) not in text
    assert "network" not in text
    assert SCRATCH not in text


def test_what_is_listed_is_opened_by_its_path_without_links(tmp_path: Path) -> None:
    for name in ("work", "data", 'odd "\\ name'):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    box = Sandbox(write=("work",), read=("link", "file", 'odd "\\ name', "absent"))
    text = profile_of(box, tmp_path)
    reads, writes = allowed(text, "file-read*"), allowed(text, "file-write*")
    assert ["subpath", f'"{tmp_path}/work"'] in writes
    assert ["subpath", f'"{tmp_path}/work"'] in reads
    assert ["subpath", f'"{tmp_path}/data"'] in reads
    assert ["subpath", f'"{tmp_path}/data"'] not in writes
    assert ["literal", f'"{tmp_path}/file"'] in reads
    assert ["subpath", rf'"{tmp_path}/odd \"\\ name"'] in reads
    assert "absent" not in text, "what is made there later stays closed"


def test_what_is_hidden_is_closed_by_the_last_rule(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    text = profile_of(Sandbox(preset="files", hide=("secret",)), tmp_path, hidden=(f"{tmp_path}/secret",))
    assert read(text)[-1] == [
        "deny",
        "file-read*",
        "file-write*",
        "process-exec*",
        ["subpath", f'"{tmp_path}/secret"'],
    ]
    assert ["subpath", f'"{tmp_path}"'] not in allowed(text, "file-read*")


@pytest.mark.parametrize(
    ("box", "outbound"),
    [
        (Sandbox(), []),
        (
            Sandbox(preset="web"),
            [["remote", "ip", '"*:*"'], ["literal", '"/private/var/run/mDNSResponder"']],
        ),
        (Sandbox(network=("localhost:5432", "[::1]:5432")), [["remote", "ip", '"localhost:5432"']]),
        (Sandbox(unix_sockets=True), [["remote", "unix-socket"]]),
    ],
    ids=["none", "any", "loopback", "Unix sockets"],
)
def test_the_network_is_that_of_the_box(box: Sandbox, outbound: list[Any], tmp_path: Path) -> None:
    assert allowed(profile_of(box, tmp_path), "network-outbound") == outbound


def test_only_listed_programs_may_be_started(tmp_path: Path) -> None:
    started = allowed(profile_of(Sandbox(execute=("cat",)), tmp_path), "process-exec*")
    assert ["subpath", '"/usr"'] not in started
    assert any(path.endswith('cat"') for kind, path in started if kind == "literal")


def test_limits_are_said_to_be_missing_and_words_stay_in_their_line(tmp_path: Path) -> None:
    box = Sandbox(memory_mb=9)
    places = places_of(box, program="/bin/sh", args=(), cwd="/", env={}, scratch=SCRATCH)
    text = profile(box, places, words="a\n(allow default)")
    assert "Not in this profile: memory_mb" in text
    assert ["allow", "default"] not in read(text)


def test_what_a_profile_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"api\.example\.com:443"):
        profile_of(Sandbox(network=("localhost:80", "api.example.com:443")), tmp_path)
    (tmp_path / "a\nb").mkdir()
    with pytest.raises(SandboxError, match="cannot be printed"):
        profile_of(Sandbox(read=("a\nb",)), tmp_path)


@pytest.mark.slow
def test_the_command_prints_a_profile(tmp_path: Path) -> None:
    shown = commands.grue("sandbox", "show", "files", "--seatbelt", cwd=tmp_path)
    assert shown.returncode == 0, shown
    assert ["subpath", f'"{tmp_path}"'] in allowed(shown.stdout, "file-write*")
    unnamed = commands.grue("sandbox", "show", "--seatbelt", cwd=tmp_path)
    assert unnamed.returncode != 0
    assert "grue sandbox show SERVER --seatbelt" in unnamed.stderr
