"""Try servers of others in the boxes that `grue sandbox learn` proposes, and steal from inside of each.

    python tools/compat/boxes.py               all of `BOXED`; writes their table into docs/guides/sandbox.md
    python tools/compat/boxes.py --only time   one of them; nothing is written

Each server is started by npx or uvx, as users do. It makes its calls while it is watched, and makes them
again in the box that was learned; the answers have to agree. Then a program that is not the server's is run
in the same box, and tries the thefts of `THEFTS`; without a box each of them succeeds.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from installing import home_of, install, version_of
from msgspec.structs import replace
from parts import SERVERS, Server

from grue import TurnLimits
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPError
from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox.box import Sandbox
from grue.sandbox.learning import Watch, watching
from grue.tool_sessions.server_specs import StdioServer

LIMITS = TurnLimits(server_startup_timeout_s=300.0, tool_call_timeout_s=120.0)
GUIDE = Path("docs/guides/sandbox.md")
BEGIN, END = "<!-- servers in their boxes -->\n", "<!-- end -->\n"
BOXED = (
    "everything",
    "filesystem",
    "memory",
    "sequential-thinking",
    "hello-world",
    "calc",
    "commands",
    "time by yokingma",
    "knowledge-graph",
    "filesystem by agent-infra",
    "sequential-thinking-tools",
    "time",
    "git",
    "calculator",
    "simple-timeserver",
    "dice",
    "math",
    "shell",
)
THEFTS = """
import ctypes, os, socket, sys
secret, profile, tcp, udp, parent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
def must(done): assert done >= 0, os.strerror(ctypes.get_errno())
def link():
    os.symlink(secret, "./grue-link"); open("./grue-link").read()
tries = {
    "read a key": lambda: open(secret).read(),
    "read it through a link": link,
    "read it through /proc/self/root": lambda: open("/proc/self/root" + secret).read(),
    "read the host's environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "write a shell profile": lambda: open(profile, "a").write("evil"),
    "connect elsewhere": lambda: socket.create_connection(("127.0.0.1", tcp), 5),
    "send a datagram": lambda: socket.socket(2, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", udp)),
    "use an abstract socket": lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + "grue-thefts"),
    "trace the host": lambda: must(libc.ptrace(0x4206, parent, 0, 0)),
    "make a user namespace": lambda: must(libc.unshare(0x10000000)),
}
for name, steal in tries.items():
    try: steal()
    except (OSError, AssertionError): continue
    print(name)
"""


def calls(server: StdioServer, part: Server, work: Path) -> list[tuple[str, bool]]:
    """Make a server's call twice, and return which failed, with the reason."""
    with ToolClient({"it": server}, limits=LIMITS) as client:
        client.connect("it")
        found = []
        for _ in range(2):
            result = client.call(f"it.{part.tool}", _placed(part.arguments, work))
            found.append((part.tool, result.is_error))
        return found


def try_part(part: Server, folder: Path, uvx: Path) -> dict[str, str]:
    """Learn a server's box, make its calls in it, try the thefts in it, and return what happened."""
    install(folder, part)
    with tempfile.TemporaryDirectory(prefix="grue-boxes-", ignore_cleanup_errors=True) as place:
        work, home = Path(place, "work"), Path(place, "home")
        (home / ".ssh").mkdir(parents=True)
        work.mkdir()
        if part.name == "git":
            subprocess.run(["git", "init", "-q", str(work)], check=True)
        command, args, env = _launched(part, folder, uvx, work, home)
        server = StdioServer(name="it", command=command, args=args, env=env, cwd=str(work))
        watch = Watch()
        calls(replace(server, sandbox=watching(watch)), part, work)  # fills the caches
        free = calls(replace(server, sandbox=watching(watch)), part, work)
        learned = watch.proposal(cwd=str(work))
        boxed = calls(replace(server, sandbox=learned), part, work)
        stolen, free_stolen = (thefts(box, home, work) for box in (learned, None))
    said = f"reads {len(learned.read)}, writes {len(learned.write)}, network "
    return {
        "name": part.name,
        "package": f"{part.registry} `{part.package}`",
        "version": version_of(folder, part),
        "by": command.rpartition("/")[2],
        "box": said + ("any" if learned.any_network else ", ".join(map(str, learned.hosts)) or "none"),
        "calls": "all" if boxed == free and not any(failed for _, failed in boxed) else f"{free} -> {boxed}",
        "thefts": ", ".join(stolen) or "none",
        "without": str(len(free_stolen)),
    }


def thefts(box: Sandbox | None, home: Path, work: Path) -> list[str]:
    """Return which thefts succeed in a box; `None`: without one."""
    import socket

    secret, profile = home / ".ssh" / "id_rsa", home / ".profile"
    secret.write_text("STOLEN")
    profile.touch()
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        abstract.bind("\0grue-thefts")
        abstract.listen()
        words = (str(secret), str(profile), str(tcp.getsockname()[1]), str(udp.getsockname()[1]))
        registry = ProcessRegistry()
        group = registry.spawn(sys.executable, ("-c", THEFTS, *words), dict(os.environ), str(work), box)
        try:
            group.close_stdin()
            if not group.watch.exited_within(300):
                raise MCPError("the thefts hang")
            found = os.read(group.stdout, 65536).decode()
            group.end()
        finally:
            registry.kill_leftovers()
            group.close_descriptors()
    (work / "grue-link").unlink(missing_ok=True)
    return found.split("\n")[:-1]


def _launched(
    part: Server, folder: Path, uvx: Path, work: Path, home: Path
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    args = tuple(arg.format(work=work, port=0) for arg in part.args)
    env = {name: value.format(work=work, port=0) for name, value in part.env.items()}
    env |= {"HOME": str(home), "UV_CACHE_DIR": str(folder / "uv-cache"), "UV_PYTHON": sys.executable}
    env["NPM_CONFIG_UPDATE_NOTIFIER"] = "false"
    if part.registry == "npm":
        where = ("--prefix", str(home_of(folder, part)), "--no-install")
        return "npx", (*where, part.program, *args), env
    wanted = ("--from", part.package, *(word for each in part.requires for word in ("--with", each)))
    # The first time it is installed into uv's cache; afterwards nothing of it needs the network.
    filled = subprocess.run(
        [uvx, *wanted, "python", "-c", ""],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if filled.returncode:
        raise MCPError(filled.stderr.strip().splitlines()[-1])
    return str(uvx), ("--offline", *wanted, part.program, *args), env


def _placed(arguments: Mapping[str, object], work: Path) -> dict[str, object]:
    return {
        key: value.replace("{work}", str(work)) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def table(rows: list[dict[str, str]]) -> str:
    """Return the rows as the guide's table."""
    system = f"Linux {platform.release().split('-')[0]}"
    head = (
        f"`tools/compat/boxes.py` started {len(rows)} servers with npx and uvx on {system}, each in the"
        " sandbox that `learn` had printed for it. Then it called their tools, and tried 10 thefts of files,"
        " keys and sockets in each sandbox.\n\n"
        "| server | package | started by | entries of its learned sandbox | tool calls that work in the"
        " sandbox | thefts that succeed: in the sandbox, without it |\n"
        "|---|---|---|---|---|---|\n"
    )
    lines = (
        f"| {row['name']} | {row['package']} {row['version']} | {row['by']} | {row['box']} | {row['calls']} |"
        f" {row['thefts']}, {row['without']} |\n"
        for row in rows
    )
    return head + "".join(lines)


def main() -> int:
    """Try what the command line says, and write the table if that is all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/compat"), help="where packages are installed"
    )
    parser.add_argument("--only", action="append", help="a server's name; may be repeated")
    options = parser.parse_args()
    folder = options.folder.absolute()
    uvx = folder / "uv" / "bin" / "uvx"
    if not uvx.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "uv"], check=True)
        subprocess.run([folder / "uv" / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    parts, rows = {part.name: part for part in SERVERS}, []
    for name in options.only or BOXED:
        try:
            rows.append(try_part(parts[name], folder, uvx))
        except MCPError as error:
            rows.append({"name": name, "failed": " ".join(str(error).split())[:200]})
        print(json.dumps(rows[-1]), flush=True)
    wrong = [row for row in rows if row.get("calls") != "all" or row.get("thefts") != "none"]
    if not options.only and not wrong:
        before, _, rest = GUIDE.read_text(encoding="utf-8").partition(BEGIN)
        GUIDE.write_text(f"{before}{BEGIN}{table(rows)}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    if shutil.which("npx") is None:
        sys.exit("It needs npx.")
    sys.exit(main())
