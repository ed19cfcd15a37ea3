"""A reasoning server: an MCP server on stdin and stdout with one tool, `think`.

The server keeps only the numbers of thoughts and the names of branches: the texts stay in the model's
conversation. It imports only a few modules of the standard library, because each turn may start a new
process. Start it without the site packages: `python -I -S PATH/TO/think.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False  # not imported from typing, because that import would slow down every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO, NoReturn, TypeAlias

    Json: TypeAlias = dict[str, Any]

USAGE = """\
usage: think.py [--help]

An MCP server over stdin and stdout with one tool, think: it lets a model reason in numbered steps
before it acts. A client starts it; there is nothing to type. In an mcp_config.json:

  {"mcpServers": {"think": {"command": "python3", "args": ["-I", "-S", "PATH/TO/think.py"]}}}

It ends when its input ends.
"""

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # ISO dates: comparable as texts
MAX_LINE_BYTES = 4 * 1024 * 1024

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

INSTRUCTIONS = (
    "Before a move that needs planning, call think once for each step of the reasoning. "
    "Stop when nextThoughtNeeded can honestly be false, then act on what you concluded."
)

DESCRIPTION = (
    "Write down one step of reasoning before acting. Number the steps from 1 and estimate how many there "
    "will be; the estimate may change on the way. To correct an earlier step, set isRevision and name that "
    "step in revisesThought. To try another way from an earlier step, name that step in branchFromThought "
    "and the new way in branchId. Set nextThoughtNeeded to false with the step that settles the matter. "
    "Nothing outside is read or changed."
)


_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
_FLAG = {"type": "boolean"}

INPUT_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "thought": _TEXT | {"description": "This step, in full sentences"},
        "thoughtNumber": _COUNT | {"description": "The number of this step, from 1"},
        "totalThoughts": _COUNT | {"description": "How many steps there will be, as it looks now"},
        "nextThoughtNeeded": _FLAG | {"description": "Whether another step follows this one"},
        "isRevision": _FLAG | {"description": "Whether this step corrects an earlier one"},
        "revisesThought": _COUNT | {"description": "The number of the step that is corrected"},
        "branchFromThought": _COUNT | {"description": "The number of the step that a new branch leaves from"},
        "branchId": _TEXT | {"description": "The name of the branch this step belongs to"},
        "needsMoreThoughts": _FLAG | {"description": "Whether the estimate turned out too low"},
    },
    "required": ["thought", "thoughtNumber", "totalThoughts", "nextThoughtNeeded"],
    "additionalProperties": False,
}

OUTPUT_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "thoughtNumber": _COUNT,
        "totalThoughts": _COUNT,
        "nextThoughtNeeded": _FLAG,
        "branches": {"type": "array", "items": {"type": "string"}},
        "thoughtHistoryLength": _COUNT,
    },
    "required": ["thoughtNumber", "totalThoughts", "nextThoughtNeeded", "branches", "thoughtHistoryLength"],
    "additionalProperties": False,
}


class Session:
    """The state of one client's session."""

    def __init__(self) -> None:
        self.version: str | None = None  # `None` until `initialize` is answered
        self.thoughts = 0
        self.numbers: set[int] = set()
        self.branches: list[str] = []

    def speaks(self, since: str) -> bool:
        """Return whether the agreed version is `since` or newer."""
        return self.version is not None and self.version >= since


class ProtocolError(Exception):
    """Raised to answer a request with a JSON-RPC error that has this `code` and `message`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _ThoughtError(Exception):
    pass


# --- The tool ---


def record_thought(session: Session, arguments: Json) -> Json:
    """Record one thought, and return what OUTPUT_SCHEMA describes."""
    given = {name: value for name, value in arguments.items() if value is not None}
    problems = _malformed(given) or _dangling(session, given)
    if problems:
        raise _ThoughtError(f"The thought was not recorded: {'; '.join(problems)}.")
    number = int(given["thoughtNumber"])
    session.thoughts += 1
    session.numbers.add(number)
    if "branchId" in given and given["branchId"] not in session.branches:
        session.branches.append(given["branchId"])
    return {
        "thoughtNumber": number,
        "totalThoughts": max(number, int(given["totalThoughts"])),
        "nextThoughtNeeded": given["nextThoughtNeeded"],
        "branches": list(session.branches),
        "thoughtHistoryLength": session.thoughts,
    }


def _malformed(given: Json) -> list[str]:
    properties = INPUT_SCHEMA["properties"]
    problems = [f"{name} is missing" for name in INPUT_SCHEMA["required"] if name not in given]
    for name, value in given.items():
        if name not in properties:
            problems.append(f"{_quoted(name)} is not an argument of think")
            continue
        fits, kind = KINDS[properties[name]["type"]]
        if not fits(value):
            problems.append(f"{name} must be {kind}")
    return problems


def _is_count(value: object) -> bool:
    # JSON has one kind of number, so 3.0 counts as an integer.
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value % 1 == 0


KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "string": (lambda value: isinstance(value, str) and value != "", "a text that is not empty"),
    "integer": (_is_count, "a whole number, 1 or more"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
}


def _dangling(session: Session, given: Json) -> list[str]:
    problems = []
    if given.get("isRevision") and "revisesThought" not in given:
        problems.append("isRevision needs revisesThought, the number of the thought it corrects")
    if "branchFromThought" in given and "branchId" not in given:
        problems.append("branchFromThought needs branchId, a name for the branch")
    for name in ("revisesThought", "branchFromThought"):
        if name in given and given[name] not in session.numbers:
            recent = ", ".join(str(number) for number in sorted(session.numbers)[-10:]) or "none yet"
            problems.append(f"{name} names thought {given[name]}, which does not exist (recorded: {recent})")
    if "branchId" in given and "branchFromThought" not in given and given["branchId"] not in session.branches:
        problems.append(f"there is no branch {_quoted(given['branchId'])}; branchFromThought starts one")
    return problems


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


# --- The methods ---


def initialize(session: Session, params: Json) -> Json:
    """Agree on the client's protocol version if it is in VERSIONS, otherwise on the newest in VERSIONS."""
    if session.version is not None:
        raise ProtocolError(INVALID_REQUEST, "the session is already initialized")
    wanted = params.get("protocolVersion")
    if not isinstance(wanted, str):
        raise ProtocolError(INVALID_PARAMS, "protocolVersion must be a string")
    session.version = wanted if wanted in VERSIONS else VERSIONS[-1]
    server = {"name": "grue-think", "version": "1.0.0"}
    if session.speaks("2025-06-18"):
        server["title"] = "Think"
    return {
        "protocolVersion": session.version,
        "capabilities": {"tools": {}},
        "serverInfo": server,
        "instructions": INSTRUCTIONS,
    }


def list_tools(session: Session, params: Json) -> Json:
    """Describe the tool, with the fields that exist in the agreed protocol version."""
    if params.get("cursor") is not None:
        raise ProtocolError(INVALID_PARAMS, "invalid cursor: the list of tools has one page")
    tool: Json = {"name": "think", "description": DESCRIPTION, "inputSchema": INPUT_SCHEMA}
    if session.speaks("2025-03-26"):
        tool["annotations"] = {"title": "Think", "readOnlyHint": True, "openWorldHint": False}
    if session.speaks("2025-06-18"):
        tool |= {"title": "Think", "outputSchema": OUTPUT_SCHEMA}
    return {"tools": [tool]}


def call_tool(session: Session, params: Json) -> Json:
    """Record a thought. An invalid thought gives an error result, so that the model reads what is wrong."""
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str):
        raise ProtocolError(INVALID_PARAMS, "name must be a string")
    if name != "think":
        raise ProtocolError(INVALID_PARAMS, f"unknown tool: {_quoted(name)}")
    if not isinstance(arguments, dict):
        raise ProtocolError(INVALID_PARAMS, "arguments must be an object")
    try:
        standing = record_thought(session, arguments)
    except _ThoughtError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    result: Json = {"content": [{"type": "text", "text": json.dumps(standing)}], "isError": False}
    if session.speaks("2025-06-18"):
        result["structuredContent"] = standing
    return result


METHODS: dict[str, Callable[[Session, Json], Json]] = {
    "initialize": initialize,
    "ping": lambda _session, _params: {},
    "tools/list": list_tools,
    "tools/call": call_tool,
}
BEFORE_INITIALIZE = ("initialize", "ping")


# --- The messages ---


def answer(session: Session, message: object) -> Json | list[Json] | None:
    """Return the reply to a decoded message or batch; None if it has no reply, such as a notification."""
    if not isinstance(message, list):
        return _answer_one(session, message)
    if session.version != "2025-03-26":
        return _error(None, INVALID_REQUEST, "this protocol version has no batches")
    if not message:
        return _error(None, INVALID_REQUEST, "the batch is empty")
    replies = [reply for part in message if (reply := _answer_one(session, part)) is not None]
    return replies or None


def _answer_one(session: Session, message: object) -> Json | None:
    if not isinstance(message, dict):
        return _error(None, INVALID_REQUEST, "a message must be an object")
    identity, method = message.get("id"), message.get("method")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        identity = None
    if message.get("jsonrpc") != "2.0":
        return _error(identity, INVALID_REQUEST, 'jsonrpc must be "2.0"')
    if "method" not in message and ("result" in message or "error" in message):
        return None
    if not isinstance(method, str):
        return _error(identity, INVALID_REQUEST, "method must be a string")
    if "id" not in message:
        return None
    if identity is None:
        return _error(None, INVALID_REQUEST, "id must be a string or an integer")
    try:
        result = _dispatch(session, method, message.get("params", {}))
    except ProtocolError as error:
        return _error(identity, error.code, error.message)
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def _dispatch(session: Session, method: str, params: object) -> Json:
    # Refuse unknown methods before any other check: a client that probes for a newer protocol with
    # server/discover then gets "not found" and falls back to initialize.
    if method not in METHODS:
        raise ProtocolError(METHOD_NOT_FOUND, f"method not found: {_quoted(method)}")
    if session.version is None and method not in BEFORE_INITIALIZE:
        raise ProtocolError(INVALID_REQUEST, f"{method} came before initialize")
    if not isinstance(params, dict):
        raise ProtocolError(INVALID_PARAMS, "params must be an object")
    return METHODS[method](session, params)


def _error(identity: str | int | None, code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}}


# --- The lines ---


def answer_line(session: Session, line: bytes) -> bytes | None:
    """Return the line that answers `line`, newline included, or None if it gets no answer."""
    if not line.strip():
        return None
    if len(line) > MAX_LINE_BYTES:
        reply: object = _error(None, INVALID_REQUEST, f"a line may have {MAX_LINE_BYTES} bytes at most")
    else:
        try:
            message = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            reply = _error(None, PARSE_ERROR, f"not a JSON message: {error}")
        else:
            reply = answer(session, message)
    # json.dumps escapes newlines in texts and adds none, so a reply is always one line.
    return None if reply is None else json.dumps(reply, separators=(",", ":")).encode() + b"\n"


def _refuse_constant(name: str) -> None:
    # `json.loads` would accept NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not JSON")


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer each line of `source` on `sink` as it comes; return at end of file."""
    session = Session()
    while line := source.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES + 1)
        if reply := answer_line(session, line):
            sink.write(reply)
            sink.flush()


def main(arguments: list[str]) -> int:
    """Run the server on stdin and stdout, if there are no arguments; return the exit status."""
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments:
        sys.stderr.write(f"think.py: unknown argument {arguments[0]}\n{USAGE}")
        return 2
    # There is nothing to clean up, so these signals may end the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


def run() -> NoReturn:
    """Run `main` and end the process with its status."""
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # Skip the interpreter's shutdown, which takes 2 ms while a client waits.
    os._exit(status)


if __name__ == "__main__":
    run()
