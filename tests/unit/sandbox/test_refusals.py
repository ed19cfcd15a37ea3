import functools
import os
import socket
from pathlib import Path

import pytest
from growth import assert_linear

from grue.sandbox.gate import Refusal
from grue.sandbox.kernel import EXECUTE, READ, WRITE, Rule
from grue.sandbox.refusals import refusals

RULES = (Rule("/usr", READ), Rule("/bin", READ), Rule("/srv/open", READ | WRITE))


def test_a_path_through_thousands_of_links_is_no_error(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"l{number + 1}").symlink_to(f"l{number}")
    (found,) = refusals(f"open '{tmp_path}/l3000': Permission denied", RULES, (), network="none")
    assert f"read {tmp_path}/l3000" in found
    assert refusals(f"{tmp_path}/l3000: Permission denied", RULES, (), network="none")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "PermissionError: [Errno 13] Permission denied: '/etc/shadow'",
            'read /etc/shadow. To allow it: "read"',
        ),
        (
            "Error: EACCES: permission denied, open '/home/u/a b.txt'",
            'read /home/u/a b.txt. To allow it: "read"',
        ),
        ("EACCES: permission denied, mkdir '/no/x'", 'write /no/x. To allow it: "write": ["/no/x"]'),
        ("touch: cannot touch '/usr/x': Permission denied", 'write /usr/x. To allow it: "write": ["/usr"]'),
        ("rm: cannot remove '/usr/bin/env': Permission denied", 'env. To allow it: "write": ["/usr/bin"]'),
        ("sh: 1: /bin/sh: Permission denied", 'start /bin/sh. To allow it: "execute": ["/bin/sh"]'),
        ("cat: /etc/shadow: Permission denied", 'read /etc/shadow. To allow it: "read": ["/etc/shadow"]'),
        ("open(/etc/shadow): Operation not permitted.", "read /etc/shadow."),
        ("PermissionError: [Errno 13] Permission denied: '/usr/lib/x.pyc'", "write /usr/lib/x.pyc"),
    ],
)
def test_a_path_beside_a_refusal_is_named_with_the_entry_to_add(text: str, said: str) -> None:
    (found,) = refusals(text, RULES, (), network="none")
    assert said in found


@pytest.mark.parametrize(
    "text",
    [
        "cat: notes.txt: Permission denied",
        "cp: cannot open 'notes.txt' for reading: Permission denied",
        "PermissionError: [Errno 13] Permission denied: 'notes.txt'",
        "sh: 1: cannot open notes.txt: Permission denied\ncat: notes.txt: Permission denied",
    ],
)
def test_a_relative_path_is_one_of_the_working_folder(text: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    assert refusals(text, RULES, (), network="none", folder=str(tmp_path)) == ()
    file.touch()
    (found,) = refusals(text, RULES, (), network="none", folder=str(tmp_path))
    assert f'read {file}. To allow it: "read": ["{file}"]' in found
    assert (
        refusals(text, (Rule(str(tmp_path), READ | WRITE),), (), network="none", folder=str(tmp_path)) == ()
    )


@pytest.mark.parametrize("access", [READ, READ | WRITE])
def test_a_program_in_an_open_folder_that_may_not_be_started_is_named(tmp_path: Path, access: int) -> None:
    tool = tmp_path / "d/tool"
    tool.parent.mkdir()
    tool.touch(mode=0o755)
    text, folder = "sh: 1: d/tool: Permission denied", str(tmp_path)
    rules = (Rule(str(tool.parent), access),)
    (found,) = refusals(text, rules, (), network="none", folder=folder)
    assert f'start {tool}. To allow it: "execute": ["{tool}"]' in found
    rules = (Rule(str(tool.parent), READ | WRITE | EXECUTE),)
    assert refusals(text, rules, (), network="none", folder=folder) == ()


def test_a_program_that_begins_its_text_with_its_own_path_was_not_refused_that_path() -> None:
    rules = (Rule("/usr", READ | EXECUTE), Rule("/bin", READ | EXECUTE))
    (found,) = refusals("/bin/sh: cat: /etc/shadow: Permission denied", rules, (), network="none")
    assert "read /etc/shadow" in found
    assert refusals("/bin/sh: Permission denied", rules, (), network="none") == ()


@pytest.mark.parametrize(
    "text",
    ["", "all well with '/etc/shadow'", "EACCES: permission denied, open '/srv/open/x'", "Permission denied"],
)
def test_what_is_no_refusal_of_the_box_is_not_blamed_on_it(text: str) -> None:
    assert refusals(text, RULES, (), network="none") == ()


def test_connections_and_names_are_explained() -> None:
    refused = Refusal("a.example:443", "it is not in the sandbox's list of hosts", "a.example:443")
    (found,) = refusals("", RULES, (refused,), network="hosts")
    assert found.endswith('To allow it: "network": ["a.example:443"]')
    names = "getaddrinfo EAI_AGAIN api.example"
    assert "gives it no network" in refusals(names, RULES, (), network="none")[0]
    assert "does not use the proxy" in refusals(names, RULES, (), network="hosts")[0]
    assert refusals(names, RULES, (), network="any") == ()


@pytest.mark.parametrize(
    "text",
    [
        "connect EACCES 127.0.0.1:5432 - Local (undefined:undefined)",
        "dial tcp 127.0.0.1:5432: socket: permission denied",
        "ConnectError: [Errno 13] Permission denied",
    ],
)
def test_a_connection_without_a_network_is_explained(text: str) -> None:
    (found,) = refusals(text, RULES, (), network="none")
    assert found == 'Its sandbox gives it no network. To allow hosts: "network": ["host:443"]'
    assert refusals(text, RULES, (), network="hosts") == (), "the gate knows which one it has refused"
    assert refusals(text, RULES, (), network="any") == ()


def test_a_unix_socket_is_not_taken_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        for text in (
            f"Error: EACCES: permission denied, open '{tmp_path}/s'",
            f"connect EACCES {tmp_path}/absent",
            f"dial unix {tmp_path}/absent: socket: permission denied",
            f"permission denied while trying to connect to the socket at unix://{tmp_path}/absent",
            f"permission denied while trying to connect to the socket at unix://{tmp_path}/s",
        ):
            (found,) = refusals(text, RULES, (), network="any")
            assert found.endswith('To allow it: "unix_sockets": true')
            assert refusals(text, RULES, (), network="none", unix_sockets=True) == ()
    for text in (
        "cannot connect: Permission denied: '/etc/passwd'",
        "cat: /srv/socket/x: Permission denied",
        f"Failed to connect: [Errno 13] Permission denied: '{tmp_path}/new.db'",
        f"[mcp-connector] EACCES: permission denied, open '{tmp_path}/new.log'",
    ):
        (found,) = refusals(text, RULES, (), network="none")
        assert "Unix socket" not in found
    assert refusals("disconnected: permission denied", RULES, (), network="none") == ()


@pytest.mark.slow
def test_hostile_text_is_bounded() -> None:
    """Each line is searched once, however many paths it names."""

    def search(size: int) -> None:
        lines = "\n".join(f"Permission denied: '/x/{number}'" for number in range(size // 5))
        text = lines + "Permission denied '/" * size
        assert len(refusals(text, RULES, (), network="none")) <= 5

    assert_linear(search, 100_000)


def test_only_some_paths_of_a_text_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    monkeypatch.setattr(os.path, "realpath", lambda path: looked_up.append(path) or path)
    text = "Permission denied:" + "".join(f" /srv/open/{number}" for number in range(3000))
    assert refusals(f"{text}\n{text}", RULES, (), network="none") == ()
    assert len(looked_up) <= 100 + len(RULES)


@pytest.mark.parametrize("path", ["/a\0b", "/a\ud800b", "/a\x1b[31mb"])
def test_a_text_that_can_be_no_path_is_not_looked_up(path: str) -> None:
    assert refusals(f"Permission denied: '{path}'", RULES, (), network="none") == ()


def test_a_folder_with_something_hidden_in_it_is_the_reason_for_what_is_closed_beside_it() -> None:
    about = functools.partial(refusals, rules=RULES, refused=(), network="none", broken=("/home/u/work",))
    for path in ("/home/u/work/new", "/home/u/work"):
        (found,) = about(f"PermissionError: [Errno 13] Permission denied: '{path}'")
        assert f"does not open {path}: it hides something in /home/u/work, so it opens only what was" in found
        assert "Move what is hidden out of /home/u/work, or work in a subfolder" in found
    (found,) = about("PermissionError: [Errno 13] Permission denied: '/home/u/work/sub/new'")
    assert '"read"' in found


# As Linux 6.18 has written them to its own log, and as auditd writes them to a file.
KERNEL = """\
6,901,17442956380,-;audit: type=1423 audit(1795517173.680:2): domain=163097d42 blockers=fs.make_dir path="/tmp" dev="vda" ino=260072
5,902,17442956396,-;audit: type=1424 audit(1795517173.680:2): domain=163097d42 status=allocated mode=enforcing pid=32485 uid=0 exe="/usr/bin/python3.11" comm="1a2b3c4d5e6f7a8"
5,903,17442956398,-;audit: type=1300 audit(1795517173.680:2): arch=c000003e syscall=83 success=no exit=-13 comm="sh"
5,904,17442956403,-;audit: type=1423 audit(1795517186.608:7): domain=163097d42 blockers=fs.read_file path=2F746D702F7A7A20712F66 dev="vda" ino=3114026
5,905,17442956403,-;audit: type=1423 audit(1795517186.609:8): domain=163097e1b blockers=fs.read_file path="/of/another/box" dev="vda" ino=1
5,906,17442956404,-;audit: type=1424 audit(1795517186.609:8): domain=163097e1b status=allocated mode=enforcing pid=32485 uid=0 exe="/usr/bin/python3.11" comm="000000000000000"
4,907,17442956405,-;evil: 5;audit: type=1423 audit(1795517186.609:8): domain=163097d42 blockers=fs.read_file path="/forged" ino=1
"""  # noqa: E501
AUDITD = """\
type=LANDLOCK_ACCESS msg=audit(1795517186.636:12): domain=163097e1b blockers=scope.signal opid=1 ocomm="init"
type=LANDLOCK_DOMAIN msg=audit(1795517186.636:12): domain=163097e1b status=allocated mode=enforcing pid=691 uid=0 exe="/usr/bin/python3.11" comm="1a2b3c4d5e6f7a8"
type=UNKNOWN[1423] msg=audit(1795517186.636:13): domain=163097e1b blockers=fs.execute,fs.read_file path="/tmp/tool" dev="vda" ino=2149458
type=LANDLOCK_ACCESS msg=audit(1795517186.640:14): domain=163097e1b blockers=fs.execute path="/usr/bin/curl" dev="vda" ino=3
type=LANDLOCK_DOMAIN msg=audit(1795517186.852:20): domain=163097e1b status=deallocated denials=13
"""  # noqa: E501


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (KERNEL, ['read /tmp/zz q/f. To allow it: "read": ["/tmp/zz q/f"]', '"write": ["/tmp"]']),
        (AUDITD, ['"execute": ["/usr/bin/curl"]', '"read": ["/tmp/tool"]', "refused scope.signal (opid=1"]),
    ],
)  # fmt: skip
def test_what_the_kernel_has_written_about_this_box_is_told_last_things_first(
    tmp_path: Path, records: str, said: list[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(records)
    logs = (str(tmp_path / "absent"), str(log))
    about = functools.partial(
        refusals, rules=RULES, refused=(), network="any", mark="1a2b3c4d5e6f7a8", logs=logs
    )
    for found in (about("it failed", died=True), about("permission denied")):
        assert len(found) == len(said)
        for sentence, part in zip(found, said, strict=True):
            assert part in sentence
    assert about("it failed") == (), "programs look for many files that they do not need"
    assert about("", died=True, mark="") == ()
    (named,) = about("cat: /etc/shadow: Permission denied", died=True)
    assert "/etc/shadow" in named, "its own text is enough"


def test_a_record_that_is_being_written_is_told_as_far_as_it_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(KERNEL[: KERNEL.index("7A7A20712F66") + 3])
    found = refusals("", (), (), network="any", died=True, mark="1a2b3c4d5e6f7a8", logs=(str(log),))
    assert found[0].startswith("Its sandbox does not let it read /tmp/z.")


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(KERNEL + "x" * (1 << 20))
    assert refusals("", (), (), network="any", died=True, mark="1a2b3c4d5e6f7a8", logs=(str(log),)) == ()
