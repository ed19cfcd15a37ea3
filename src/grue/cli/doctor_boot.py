"""`grue doctor`: how long each part of a server's start takes, and a faster command line if there is one."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path, PurePath

from msgspec import Struct

from grue import messages as m
from grue.engine.outside_turns.tool_client import ToolClient
from grue.policies import TurnLimits
from grue.runtime.safe_text import printable
from grue.tool_sessions.server_specs import McpServer, StdioServer
from grue.transports.mcp.launchers import Direct, Launcher, direct_command, launcher_of

_DO_NOTHING = {"node": ("-e", "0"), "python": ("-c", "")}
_INTERPRETER_S = 10.0
_SHEBANG_BYTES = 256


class Launch(Struct, frozen=True):
    """The facts about a server's start that are known before it is started.

    Attributes:
        launcher: npx or uvx.
        installed: The launcher has the package, so that the start downloads nothing.
    """

    server: StdioServer
    launcher: Launcher
    installed: bool


def before_start(server: McpServer) -> Launch | None:
    """Look at a server before it is started; `None`: it is not started by npx or uvx."""
    if not isinstance(server, StdioServer) or (launcher := launcher_of(server)) is None:
        return None
    # What uv has in its cache shows only when it is started again.
    return Launch(server, launcher, installed=launcher == "npx" and direct_command(server) is not None)


def boot_lines(launch: Launch, opened: m.SessionOpened, limits: TurnLimits) -> Iterator[str]:
    """Yield what a server's start consisted of. It is started up to twice more for that.

    Args:
        launch: As it was before the start.
        opened: Its first start.
        limits: For the further ones.
    """
    launcher, first_s = launch.launcher, opened.elapsed_s
    again = None if launch.installed else _started(launch.server, limits)
    warm_s = first_s if again is None else min(first_s, again.elapsed_s)
    parts = [f"download {first_s - warm_s:.2f} s"]
    direct = direct_command(launch.server)
    straight = None if direct is None else _started(direct.server, limits)
    if direct is None or straight is None or _names(straight) != _names(opened):
        yield f"its start: {', '.join(parts)}, {launcher} and the server {warm_s:.2f} s"
        return
    interpreter = _interpreter_s(direct.server)
    own_s = straight.elapsed_s
    parts.insert(0, f"{launcher} {max(0.0, warm_s - own_s):.2f} s")
    if interpreter is not None:
        name, took_s = interpreter
        parts.append(f"{name} {min(took_s, own_s):.2f} s")
        own_s = max(0.0, own_s - took_s)
    yield f"its start: {', '.join(parts)}, program and handshake {own_s:.2f} s"
    yield from _advice(launcher, direct, f"{straight.elapsed_s:.2f} s instead of {warm_s:.2f} s")


def _advice(launcher: Launcher, direct: Direct, times: str) -> Iterator[str]:
    server = direct.server
    hidden = dict(server.__rich_repr__())
    command = f'"command": {json.dumps(server.command, ensure_ascii=False)}'
    args = f'"args": {json.dumps(server.args, ensure_ascii=False)}'
    if hidden["args"] != server.args:
        args = "with the arguments that follow the package now"  # one looks like a key
    how = "from uv's cache" if "--offline" in server.args else f"without {launcher}"
    yield printable(f"faster {how}, {times}: {command}, {args}")
    yield printable(direct.note)


def _started(server: StdioServer, limits: TurnLimits) -> m.SessionOpened | None:
    """Start a server and end it; `None`: it did not start."""
    with ToolClient({server.name: server}, limits=limits) as client:
        outcome = client.connect()[server.name]
    return outcome if isinstance(outcome, m.SessionOpened) else None


def _names(opened: m.SessionOpened) -> set[str]:
    return {tool.tool for tool in opened.tools}


def _interpreter_s(server: StdioServer) -> tuple[str, float] | None:
    """Return the program's interpreter, and how long it takes to do nothing; `None`: it has none we know."""
    command = _shebang(Path(server.command))
    name = PurePath(command[-1]).name if command else ""
    words = next((words for known, words in _DO_NOTHING.items() if name.startswith(known)), None)
    if words is None:
        return None
    begun = time.monotonic()
    try:
        subprocess.run(
            [*command, *words],
            env=server.environment(),
            capture_output=True,
            timeout=_INTERPRETER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return name, time.monotonic() - begun


def _shebang(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
