# ruff: noqa: E501 - tables
"""Thefts by a program in a box, each tried without the box first: there it has to succeed, or nothing is shown."""

import ctypes
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import boxes
import pytest
from msgspec import Struct

import grue
from grue.sandbox.box import Preset, Sandbox
from grue.sandbox.kernel import coverage

pytestmark = boxes.needs_boxes


class Stage(Struct, frozen=True):
    """A machine with something to steal; `code` of a theft is formatted with these."""

    secret: Path
    profile: Path
    workspace: Path
    tool: Path
    tcp: int
    udp: int
    unix: Path
    datagrams: Path
    abstract: str
    queue: int
    mq: bytes


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    (home / ".ssh").mkdir(parents=True)
    workspace.mkdir()
    secret, profile, tool = home / ".ssh" / "id_rsa", home / ".profile", home / "tool.sh"
    secret.write_text("STOLEN")
    profile.write_text("# a profile\n")
    tool.write_text("#!/bin/sh\necho STOLEN\n")
    tool.chmod(0o755)
    abstract = f"grue-test-{os.getpid()}-{tmp_path.name}"
    unix = Path(f"/tmp/grue-test-{os.getpid()}.sock")
    datagrams = Path(f"/tmp/grue-test-{os.getpid()}.dgram")
    libc = ctypes.CDLL(None)
    mq = f"/{abstract}".encode()
    with suppress(OSError):  # a kernel may have no such queues
        os.close(libc.mq_open(mq, os.O_CREAT, 0o600, None))
    queue = libc.msgget(0, 0o1600)
    libc.msgsnd(queue, struct.pack("=q6s", 1, b"STOLEN"), 6, 0)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as unnamed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        udp.bind(("127.0.0.1", 0))
        named.bind(str(unix))
        named.listen()
        log.bind(str(datagrams))
        unnamed.bind(f"\0{abstract}")
        unnamed.listen()
        try:
            yield Stage(
                secret=secret, profile=profile, workspace=workspace, tool=tool, tcp=tcp.getsockname()[1],
                udp=udp.getsockname()[1], unix=unix, datagrams=datagrams, abstract=abstract, queue=queue,
                mq=mq,
            )  # fmt: skip
        finally:
            unix.unlink()
            datagrams.unlink()
            libc.msgctl(queue, 0, None)
            libc.mq_unlink(mq)


CALL = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
THEFTS = {
    "read a private key": "print(open({secret!r}).read())",
    "list the folder of a private key": "import os; print('STOLEN' if os.listdir(os.path.dirname({secret!r})) else '')",
    "read the environment of the parent": """
import os
found = open(f"/proc/{{os.getppid()}}/environ", "rb").read()
print("STOLEN" if b"=" in found else "")""",
    "read the command line of the parent": """
import os
print("STOLEN" if open(f"/proc/{{os.getppid()}}/cmdline", "rb").read() else "")""",
    "read the memory of the parent": """
import os
maps = open(f"/proc/{{os.getppid()}}/maps").readline()
print("STOLEN" if maps else "")""",
    "write a shell profile": "open({profile!r}, 'a').write('evil'); print('STOLEN')",
    "empty a file": "import os; os.truncate({profile!r}, 0); print('STOLEN')",
    "delete a file": "import os; os.unlink({profile!r}); print('STOLEN')",
    "rename a file into the scratch folder": """
import os; os.rename({secret!r}, os.environ.get("TMPDIR", "/tmp") + "/grue-moved"); print("STOLEN")""",
    "read through a symbolic link": """
import os, tempfile
place = tempfile.mkdtemp() + "/x"
os.symlink({secret!r}, place); print(open(place).read())""",
    "read through a hard link": """
import os, tempfile
place = tempfile.mkdtemp(dir=None) + "/x"
os.link({secret!r}, place); print(open(place).read())""",
    "read through /proc/self/root": "print(open('/proc/self/root' + {secret!r}).read())",
    "read through the parent's root": "import os; print(open(f'/proc/{{os.getppid()}}/root' + {secret!r}).read())",
    "read by a child that was loaded with LD_PRELOAD": """
import os, subprocess
env = dict(os.environ, LD_PRELOAD="libm.so.6")
print(subprocess.run(["cat", {secret!r}], env=env, capture_output=True, text=True, check=True).stdout)""",
    "read from a process that left the group": """
import os, subprocess
print(subprocess.run(["cat", {secret!r}], start_new_session=True, capture_output=True, text=True, check=True).stdout)""",
    "run a program elsewhere": """
import subprocess
print(subprocess.run([{tool!r}], capture_output=True, text=True, check=True).stdout)""",
    "connect elsewhere": "import socket; socket.create_connection(('127.0.0.1', {tcp}), 5); print('STOLEN')",
    "connect by sending (TCP fast open)": """
import socket
with socket.socket() as s:
    s.sendto(b"x", 0x20000000, ("127.0.0.1", {tcp})); print("STOLEN")""",
    "listen": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('STOLEN')",
    "send a datagram, as DNS does": """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"secret", ("127.0.0.1", {udp})); print("STOLEN")""",
    "send through a raw socket": """
import socket
socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("STOLEN")""",
    "listen to packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('STOLEN')",
    "connect to a Unix socket": "import socket; socket.socket(socket.AF_UNIX).connect({unix!r}); print('STOLEN')",
    "connect to an abstract socket": """
import socket; socket.socket(socket.AF_UNIX).connect("\\0" + {abstract!r}); print("STOLEN")""",
    "send a datagram to a Unix socket from a pair": """
import socket
one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.sendto(b"secret", {datagrams!r}); print("STOLEN")""",
    "read a message of other programs by the number of its queue": CALL
    + """
found = ctypes.create_string_buffer(99)
assert libc.msgrcv({queue}, found, 80, 0, 0o4000) >= 0; print(found.raw[8:14].decode())""",
    "delete a queue of other programs": CALL
    + """
assert libc.mq_unlink({mq!r}) == 0; print("STOLEN")""",
    "change an attribute of a file": "import os; os.setxattr({profile!r}, 'user.evil', b'x'); print('STOLEN')",
    "change the flags of a file that it may read": """
import fcntl, os
with open(os.__file__) as file:
    fcntl.ioctl(file, 0x40086602, fcntl.ioctl(file, 0x80086601, bytes(8))); print("STOLEN")""",
    "watch which files are used": CALL
    + """
watched = os.path.dirname({secret!r}).encode()
assert libc.inotify_add_watch(libc.inotify_init(), watched, 0xfff) >= 0; print("STOLEN")""",
    "limit what the host may use": """
import os, resource
resource.prlimit(os.getppid(), resource.RLIMIT_CORE, resource.prlimit(os.getppid(), resource.RLIMIT_CORE)); print("STOLEN")""",
    "slow the host down": """
import os
os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid())); print("STOLEN")""",
    "pin the host to a processor": """
import os
os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid())); print("STOLEN")""",
    "trace the host": CALL + "assert libc.ptrace(0x4206, os.getppid(), 0, 0) == 0; print('STOLEN')",
    "signal the host": "import os; os.kill(os.getppid(), 0); print('STOLEN')",
    "make a user namespace": CALL + "assert libc.unshare(0x10000000) == 0; print('STOLEN')",
    "make a user namespace by clone3": CALL
    + """
import struct
arguments = struct.pack("=8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
child = libc.syscall(435, arguments, 64)
if child == 0: os._exit(0)
assert child > 0; print("STOLEN")""",
    "make a ring": CALL
    + """
assert libc.syscall(425, 4, (ctypes.c_char * 120)()) >= 0; print("STOLEN")""",
    "share memory with other programs": CALL
    + """
made = libc.shmget(0x67727565, 4096, 0o1600); assert made >= 0; libc.shmctl(made, 0, None); print("STOLEN")""",
    "look into the keyring": CALL + "assert libc.syscall({keyctl}, 0, -3, 0) >= 0; print('STOLEN')",
    "lose the mark by which leftovers are found": """
import resource
resource.setrlimit(resource.RLIMIT_RTTIME, (1, 1)); print("STOLEN")""",
    "lose that mark by a pointer whose lower half is null": CALL
    + """
import mmap
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
place = libc.mmap(5 << 32, 4096, 3, 0x32, -1, 0); assert place == 5 << 32
(ctypes.c_uint64 * 2).from_address(place)[:] = [1, 1]
assert libc.prlimit64(0, 15, ctypes.c_void_p(place), None) == 0; print("STOLEN")""",
}
OF_THE_NETWORK = {
    "connect elsewhere",
    "connect by sending (TCP fast open)",
    "listen",
    "send a datagram, as DNS does",
}
"""What the preset `web` allows."""
OF_FILES = {"watch which files are used"}
"""What the preset `files` allows."""
KEYCTL = {"x86_64": 250, "aarch64": 219}


def tried(theft: str, stage: Stage, box: Sandbox | None) -> boxes.Ran:
    places = {
        name: str(value) if isinstance(value := getattr(stage, name), Path) else value
        for name in stage.__struct_fields__
    }
    code = THEFTS[theft].format(**places, keyctl=KEYCTL.get(os.uname().machine, 0))
    return boxes.python(box, code, cwd=stage.workspace)


@pytest.mark.parametrize("preset", ["pure", "files", "web"])
@pytest.mark.parametrize("theft", THEFTS)
def test_a_theft_fails_in_the_box(theft: str, preset: Preset, stage: Stage) -> None:
    if preset == "web" and theft in OF_THE_NETWORK:
        pytest.skip("the preset 'web' allows it")
    if preset == "files" and theft in OF_FILES:
        pytest.skip("the preset 'files' allows it")
    if theft == "signal the host" and coverage().landlock < 6:
        pytest.skip("needs Landlock 6, which Linux 6.12 has")
    caught = tried(theft, stage, Sandbox(preset=preset))
    assert "STOLEN" not in caught.stdout, caught
    assert "Error" in caught.stderr, caught
    # Last, because some thefts succeed only once. A machine that stops it without a box shows nothing.
    free = tried(theft, stage, None) if preset == "pure" else boxes.Ran("", "STOLEN", "")
    if "STOLEN" not in free.stdout:
        pytest.skip(f"this machine stops it without a box: {free.stderr.strip().splitlines()[-1:]}")


def test_no_descriptor_of_the_host_is_inherited(stage: Stage) -> None:
    with stage.secret.open("rb") as secret:
        os.set_inheritable(secret.fileno(), True)
        code = "import os\nfor fd in range(3, 4096):\n try: print(os.read(fd, 99))\n except OSError: pass"
        assert boxes.python(Sandbox(), code).stdout == ""


def test_a_setuid_program_gets_no_rights(tmp_path: Path) -> None:
    asked = boxes.python(Sandbox(), "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))")
    assert asked.stdout == "1\n", "no_new_privs"
    if os.getuid() != 0:
        pytest.skip("needs root, to make a program that changes its user")
    other = tmp_path / "id"
    other.write_bytes(Path("/usr/bin/id").read_bytes())
    os.chown(other, 65534, 65534)
    other.chmod(0o755 | stat.S_ISUID)
    assert "euid=65534" in boxes.run(None, str(other)).stdout
    assert "euid" not in boxes.run(Sandbox(read=(str(tmp_path),)), str(other)).stdout


def test_root_keeps_its_rights_over_files_only() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, which has rights to lose")
    code = """
import ctypes, struct
found = ctypes.create_string_buffer(24)
ctypes.CDLL(None).capget(struct.pack("=Ii", 0x20080522, 0), found)
print([hex(each) for each in struct.unpack("=6I", found.raw)])"""
    assert boxes.python(Sandbox(), code).stdout == "['0x1b', '0x1b', '0x0', '0x0', '0x0', '0x0']\n"


def test_the_hosts_own_threads_stay_free(stage: Stage) -> None:
    boxes.run(Sandbox(), "true")
    assert stage.secret.read_text() == "STOLEN"
    socket.create_connection(("127.0.0.1", stage.tcp), 5).close()
    assert boxes.run(None, "cat", str(stage.secret)).stdout == "STOLEN"


@pytest.mark.slow
def test_the_same_holds_for_a_user_who_is_not_root() -> None:
    """The thefts again, and the limit of processes, which root does not have."""
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        pytest.skip(
            "needs root, to become another user, and setpriv; as another user the tests above show it"
        )
    home = Path(tempfile.mkdtemp(prefix="grue-nobody-"))
    os.chown(home, 65534, 65534)
    modules = (sysconfig.get_paths()["purelib"], str(Path(grue.__file__).parents[1]))
    env = {"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": ":".join(modules)}

    def as_nobody(*argv: str) -> "subprocess.CompletedProcess[str]":
        # With a shell between: setpriv itself still has root's rights when it starts the program.
        become = (setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'exec "$@"', "sh")
        return subprocess.run(
            (*become, *argv), env=env, cwd=home, capture_output=True, text=True, check=False
        )

    try:
        mine = f"import sys, grue, pytest; assert sys.version_info[:2] == {tuple(sys.version_info[:2])}"
        names = (
            os.path.realpath(sys.executable),
            shutil.which(f"python3.{sys.version_info[1]}", path=os.defpath),
        )
        usable = [name for name in names if name and as_nobody(name, "-c", mine).returncode == 0]
        if not usable:
            pytest.skip("no Python here that another user may run with these packages")
        files = (__file__, str(Path(__file__).with_name("test_launch.py")))
        chosen = "(test_a_theft_fails_in_the_box and pure) or processes_are_limited"
        ran = as_nobody(usable[0], "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen)
        assert ran.returncode == 0, ran.stdout
        passed = re.search(r"(\d+) passed", ran.stdout)
        assert passed is not None
        assert int(passed[1]) > 3 / 4 * len(THEFTS), ran.stdout
    finally:
        shutil.rmtree(home)
