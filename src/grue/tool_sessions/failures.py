"""The errors that a tool server can cause: `ServerFailed` ends the session, others fail one call only."""

from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct

from grue import messages as m
from grue.errors import MCPError
from grue.policies import ServerPhase
from grue.runtime.safe_text import fault_text

INSTALL_NODE = "`apt-get install nodejs npm` or `brew install node`, or https://nodejs.org/"
_NODE = {"node", "npx", "npm", "pnpm", "yarn", "bun", "bunx"}
_INSTALL = {
    "uv": "Install uv: https://docs.astral.sh/uv/",
    "uvx": "Install uv: https://docs.astral.sh/uv/",
    "docker": "Install Docker: https://docs.docker.com/get-docker/",
}


class ServerFailed(MCPError):  # noqa: N818 - named as the event it reports, like the messages
    """A server could not be started, or cannot be used any further; `failure` holds the details.

    Source: R6.1
    """

    def __init__(self, failure: m.ServerFailure) -> None:
        super().__init__(failure_text(failure))
        self.failure = failure


class WireFault(Struct, frozen=True):
    """A failed exchange at the transport level."""

    cause: str  # why it failed, in one clause without secrets or control characters
    ends_session: bool  # whether later exchanges would probably fail, too
    remedy: str | None = None  # `None`: the usual advice for the `ServerPhase` that failed
    needs_login: bool = False  # whether a person has to log in first


SESSION_LOST = WireFault(
    "session lost: the server does not know this session any more",
    ends_session=True,
    remedy="The server has restarted, or has given the session up; the next turn opens a new one.",
)


class ToolTimedOutError(MCPError, TimeoutError):
    """A call or another request got no answer in time. The session stays usable; a late answer is dropped.

    Source: R6.5
    """

    def __init__(self, tool: str, timeout_s: float) -> None:
        super().__init__(f"Tool call timed out after {timeout_s:g}s")
        self.tool = tool
        self.timeout_s = timeout_s


class ToolRefusedError(MCPError):
    """A call was answered with an error, or grue refused it, cancelled it or cannot use the answer."""

    def __init__(self, message: str, *, code: int, details: object = None) -> None:
        super().__init__(message)
        self.code = code  # the server's JSON-RPC code, or else grue's
        self.details = details  # the error's `data`, untrusted


def failure_text(failure: m.ServerFailure) -> str:
    """Return a failure as text for the user."""
    by_url = failure.command.startswith(("http://", "https://"))
    if failure.phase in ("call", "close"):
        headline = f"MCP server '{failure.server}' failed in {failure.phase}: {failure.cause}"
    else:
        headline = (
            f"Failed to {'reach' if by_url else 'start'} MCP server '{failure.server}': {failure.cause}"
        )
    lines = [headline, f"{'URL' if by_url else 'Command'}: {failure.command}"]
    if failure.stderr_tail:
        lines += ["Its last lines on stderr:", *(f"  {line}" for line in failure.stderr_tail.splitlines())]
    if failure.remedy:
        lines.append(failure.remedy)
    return "\n".join(lines)


DOWNLOAD_TIMEOUT_S = 60.0  # start-up limit for commands that may have to download the server
_DOWNLOADS = frozenset({"npx", "bunx", "pnpx", "uvx", "docker", "podman"})
_DOWNLOADS_WITH = {
    "npm": ("exec", "x"),
    "pnpm": ("dlx",),
    "yarn": ("dlx",),
    "bun": ("x",),
    "uv": ("tool", "run"),
    "pipx": ("run",),
    "deno": ("run",),
}


def downloads(command: str, args: Sequence[str]) -> bool:
    """Return whether a command may have to download the server before it starts, as `npx` does."""
    program = command.rpartition("/")[2].removesuffix(".cmd")
    return program in _DOWNLOADS or next(iter(args), "") in _DOWNLOADS_WITH.get(program, ())


def needs_longer(place: str) -> str:
    """Return the advice for a server that may only be slow. `place` names the setting of its time limit."""
    return f"If it only needs longer, raise {place}."


def remedy_for(
    command: str,
    phase: ServerPhase,
    *,
    missing: bool = False,
    slow_place: str | None = None,
    wrote: bool = False,
) -> str:
    """Return the advice for a failure, in one or two sentences."""
    # `missing`: the command was not found. `slow_place`: if the server was too slow to start, the name of the
    # setting of its start-up limit. `wrote`: the error also shows lines from the server's stderr.
    program = PurePath(command).name or command
    if phase in ("call", "close"):
        if wrote:
            return "Its last lines on stderr may say why; if not, run the command in a terminal."
        return "Run the command in a terminal to see why the server ends."
    if program in _NODE:
        check = "Check that Node.js is installed and the package is available."
        if missing:
            return f"{check} Install Node.js: {INSTALL_NODE}"
        return check if slow_place is None else f"{check} {needs_longer(slow_place)}"
    if missing and "://" in command:
        return '`command` is a program. For a server with a URL, write "url"; in code, HttpServer(url=...).'
    first, *others = command.split() or [""]
    if missing and others and "/" not in first:
        listed = ", ".join(f'"{each}"' for each in others)
        return f'`command` is the program alone: write "command": "{first}", "args": [{listed}, ...].'
    if missing and program.endswith((".py", ".js", ".mjs")):
        interpreter = "python" if program.endswith(".py") else "node"
        return (
            f'A script needs its interpreter: write "command": "{interpreter}", "args": ["{command}", ...].'
        )
    if missing and "/" in command and not command.startswith("/"):
        return "A relative `command` begins at the server's `cwd`. Correct it, or write the whole path."
    if missing:
        return _INSTALL.get(
            program, f"Install {program}, or correct `command` in the server's configuration."
        )
    if phase == "spawn":
        return "Check `command`, `args` and `cwd` in the server's configuration."
    if slow_place is not None:
        return (
            f"Check that the command starts an MCP server that speaks over stdio. {needs_longer(slow_place)}"
        )
    return "Run the command in a terminal to see why it does not start."


def first_fault(error: Exception) -> str:
    """Return the first problem in a validation error, or the first line of any other exception's text."""
    # A pydantic error has several lines for each problem. Other classes have an `errors` of another kind.
    if isinstance(error, ValueError) and hasattr(error, "error_count"):
        fault: m.JsonObject = error.errors()[0]  # type: ignore[attr-defined]  # pydantic is not imported here
        where = ".".join(str(part) for part in fault.get("loc") or ())  # type: ignore[attr-defined]  # a tuple
        said = fault_text(str(fault.get("msg")))
        return f"{where}: {said}" if where else said
    return str(error).partition("\n")[0] or type(error).__name__
