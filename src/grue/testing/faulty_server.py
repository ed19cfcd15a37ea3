"""An MCP server over stdio with faults that are selected by flags, for testing clients.

Without flags it is a correct small server with three tools: `echo` (returns `text`), `fail` (a tool error),
and `environ` (the value of one environment variable). Flags can be combined:

```python
command, *args = faulty_server.argv("--silent-at", "call", "--ignore-eof", "--ignore-term")
```

It uses only the standard library, and `argv` starts Python with `-S`, so that it boots in about 20 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # importing `typing` would double the time that this server takes to boot
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PHASES = {"initialize": "initialize", "tools/list": "list", "tools/call": "call"}
_FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
# The choices of `--ask`: requests to the client.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sampling": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Hello?"}}], "maxTokens": 9},
    ),
    "elicitation": ("elicitation/create", {"message": "Your name?", "requestedSchema": _FORM}),
    "roots": ("roots/list", {}),
    "ping": ("ping", {}),
    "nonsense": ("faulty/nonsense", {}),
}

# The choices of `--after-listing`: what the server does by itself, once it has listed its tools.
UNPROMPTED_ACTIONS = ("exit", "kill", "close-stdout", "noise", "change-tools")
GARBAGE = (
    b"Server listening...",
    b'{"half": ',
    b"[1, 2]",
    b"\xff\xfe\x00garbage",
    b'{"neither": "request"}',
    b"",
)


def argv(*flags: str) -> tuple[str, ...]:
    """Return the command line that runs this server with `flags` and the interpreter of this process."""
    # Python imports this module instead of running the file, so that it can use the cached bytecode:
    # compiling takes a fifth of the start-up.
    folder = os.path.dirname(__file__)  # noqa: PTH120 - one import less to boot with
    start = f"import sys; sys.path.append({folder!r}); import faulty_server; faulty_server.run()"
    return (sys.executable, "-I", "-S", "-c", start, *flags)


def run() -> None:
    """Run the server with the flags on the command line."""
    _FaultyServer(_flags_of_this_start(_flags().parse_args())).serve()


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="faulty_server",
        description="An MCP server over stdio, with the faults that the flags add.",
        # Without a width, argparse would import shutil to find out the terminal's width.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    add = parser.add_argument
    requests = tuple(PHASES.values())
    phases = ("start", *requests)
    add("--silent-at", metavar="PHASE", action="append", default=[], choices=phases, help="never answer")
    add("--exit-at", metavar="PHASE", choices=phases, help="exit instead of answering")
    add("--exit-status", type=int, default=1, help="the status it exits with (default: 1)")
    add("--kill-at", metavar="PHASE", choices=phases, help="kill itself (SIGKILL) instead of answering")
    again: dict[str, Any] = {"metavar": "PHASE", "action": "append", "default": [], "choices": requests}
    add("--error-at", **again, help="answer with a JSON-RPC error; not at `start`")
    add("--null-at", **again, help="answer with `result: null`; not at `start`")
    closing = "close standard output instead of answering; keep running"
    add("--close-stdout-at", metavar="PHASE", choices=phases, help=closing)
    stop = "stop reading after this answer; not at `start`"
    add("--stop-reading-after", metavar="PHASE", choices=requests, help=stop)
    add("--stderr", metavar="TEXT", help="write this line to standard error at the start")
    flood = "write at least this much to standard error at the start"
    add("--flood-stderr", metavar="BYTES", type=int, default=0, help=flood)
    add("--ignore-eof", action="store_true", help="keep running when standard input ends")
    add("--ignore-term", action="store_true", help="ignore SIGTERM")
    grandchild = "start a process that holds standard output for ten minutes"
    add("--grandchild", action="store_true", help=grandchild)
    runaway = "start such a process for this long, in a session of its own"
    add("--runaway", metavar="SECONDS", type=float, help=runaway)
    daemon = "start a process by a double fork and setsid, without pipes, that lives for ten minutes"
    add("--daemon", metavar="PID_FILE", nargs="?", const="", help=daemon)
    add("--bare", action="store_true", help="start the daemon with an empty environment")
    _add_message_flags(parser)
    return parser


def _add_message_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--noise", metavar="N", type=int, default=0, help="write N lines of garbage before each answer")
    add("--invalid-utf8", action="store_true", help="put invalid UTF-8 into the answers to calls")
    add("--huge-result", metavar="BYTES", type=int, default=0, help="add this much text to answers to calls")
    add("--drip", metavar="SECONDS", type=float, help="write byte by byte, with this pause between")
    add("--slow-call", metavar="SECONDS", type=float, default=0.0, help="make each call take this long")
    add("--chatty", action="store_true", help="log and report progress during calls")
    add("--malformed-notification", metavar="LEVEL", help="send a log message of this level during calls")
    add("--malformed-tool", action="store_true", help="list three broken tools beside the good ones")
    add("--double-tool", action="store_true", help="list echo again on every page, with other arguments")
    pages = "list the tools on N pages, with one more tool on each"
    add("--pages", metavar="N", type=int, default=1, help=pages)
    add("--page-loop", action="store_true", help="make the last page refer to the first one")
    add("--late", metavar="SECONDS", type=float, default=0.0, help="delay answers to calls, but keep reading")
    add("--duplicate", action="store_true", help="send every answer twice")
    add("--wrong-id", action="store_true", help="answer calls with the id of no request")
    add("--fork", action="store_true", help="fork a copy that keeps all pipes open and ignores SIGTERM")
    change = "list other tools from the first call on, and notify before its answer"
    add("--change-tools", action="store_true", help=change)
    add("--ask", metavar="WHAT", choices=tuple(REQUESTS), help="send this request before answering a call")
    unprompted = "do this by itself, right after it has listed its tools"
    add("--after-listing", choices=UNPROMPTED_ACTIONS, help=unprompted)
    add("--protocol-version", metavar="V", help="answer initialize with this version")
    add("--record", metavar="FILE", help="append every line it reads to FILE; {pid} in it is the process's")
    only = "have the faults only in these starts of the server, such as 2 or 2,3; FILE counts the starts"
    add("--only-in", nargs=2, metavar=("LIVES", "FILE"), help=only)


class _FaultyServer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._calls = 0
        self._changed = False
        self._asked = 0
        self._unread: list[dict[str, Any]] = []
        self._lines = self._read_lines()
        self._writing = threading.RLock()

    def serve(self) -> None:
        self._begin()
        while message := self._next():
            if "method" in message and "id" in message:
                self._serve(message, PHASES.get(message["method"], "other"))
        if self._flags.ignore_eof:
            _sleep_for_ever()

    def _serve(self, message: dict[str, Any], phase: str) -> None:
        if self._fails(phase):
            return
        self._make_noise(self._flags.noise)
        answer = {"jsonrpc": "2.0", "id": message["id"], **self._answer(message, phase)}
        if phase == "call":
            self._answer_call(answer)
        else:
            self._send_answer(answer)
        if phase == "list" and self._flags.after_listing:
            self._act(self._flags.after_listing)
        if self._flags.stop_reading_after == phase:
            _sleep_for_ever()

    def _act(self, action: str) -> None:
        if action == "exit":
            os._exit(self._flags.exit_status)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "close-stdout":
            os.close(1)
            return
        if action == "noise":
            self._make_noise(len(GARBAGE))
        elif not self._changed:
            self._change_tools()
        self._notify(
            "notifications/message", {"level": "info", "logger": "faulty", "data": f"done: {action}"}
        )

    def _answer_call(self, answer: dict[str, Any]) -> None:
        self._calls += 1
        if self._flags.wrong_id:
            answer["id"] = f"wrong-{answer['id']}"
        if self._flags.late:
            late = threading.Timer(self._flags.late, self._send_answer, [answer])
            late.daemon = True
            late.start()
            return
        if self._flags.change_tools and self._calls == 1:
            self._change_tools()
        self._send_answer(answer)

    def _change_tools(self) -> None:
        self._changed = True
        self._notify("notifications/tools/list_changed", {})

    def _send_answer(self, answer: dict[str, Any]) -> None:
        for _ in range(1 + self._flags.duplicate):
            self._send(answer)

    def _begin(self) -> None:
        flags = self._flags
        if flags.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if flags.grandchild:
            _start_sleep("600")
        if flags.runaway:
            _start_sleep(str(flags.runaway), start_new_session=True)
        if flags.daemon is not None:
            _start_daemon(flags.daemon, {} if flags.bare else dict(os.environ))
        if flags.fork and os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _sleep_for_ever()
        if flags.stderr:
            os.write(2, flags.stderr.encode() + b"\n")
        written = 0
        while written < flags.flood_stderr:
            written += os.write(2, b"a line of a flood of complaints\n")
        if self._fails("start"):
            _sleep_for_ever()

    def _next(self) -> dict[str, Any] | None:
        if self._unread:
            return self._unread.pop(0)
        line = next(self._lines, None)
        message: dict[str, Any] | None = None if line is None else json.loads(line)
        return message

    def _read_lines(self) -> Iterator[bytes]:
        for line in sys.stdin.buffer:
            if self._flags.record:
                named = self._flags.record.replace("{pid}", str(os.getpid()))
                with open(named, "ab") as record:  # noqa: PTH123 - one import less to boot with
                    record.write(line)
            yield line

    def _fails(self, phase: str) -> bool:
        """Carry out a fault that prevents an answer in this phase; return `False` if no flag asks for one."""
        flags = self._flags
        if flags.exit_at == phase:
            sys.stderr.flush()
            os._exit(flags.exit_status)
        if flags.kill_at == phase:
            os.kill(os.getpid(), signal.SIGKILL)
        if flags.close_stdout_at == phase:
            os.close(1)
            return True
        return phase in flags.silent_at

    def _answer(self, message: dict[str, Any], phase: str) -> dict[str, Any]:
        params = message.get("params") or {}
        if phase in self._flags.error_at:
            return {"error": {"code": -32050, "message": f"told to refuse {phase}"}}
        if phase in self._flags.null_at:
            return {"result": None}
        if phase == "initialize":
            version = self._flags.protocol_version or params.get("protocolVersion")
            changes = bool(self._flags.change_tools or self._flags.after_listing == "change-tools")
            capabilities = {"tools": {"listChanged": changes}, "logging": {}}
            server = {"name": "faulty", "version": "1.0"}
            return {
                "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}
            }
        if phase == "list":
            return {"result": self._listing(params.get("cursor"))}
        if phase == "call":
            return {"result": self._call(params)}
        if message["method"] == "ping":
            return {"result": {}}
        return {"error": {"code": -32601, "message": f"Method not found: {message['method']}"}}

    def _listing(self, cursor: str | None) -> dict[str, Any]:
        page = int(cursor or 1)
        tools: list[Any] = [_tool(f"page_{page}")]
        if page == 1:
            tools = [_tool("echo", "text"), _tool("fail"), _tool("environ", "name")]
            if self._changed:
                tools = [_tool("echo", "words"), _tool("added")]
            if self._flags.malformed_tool:
                tools += [
                    {"description": "no name"},
                    _tool("bad schema") | {"inputSchema": "text"},
                    "no tool",
                ]
        if self._flags.double_tool:
            tools.append(_tool("echo", "words"))
        if page < self._flags.pages:
            return {"tools": tools, "nextCursor": str(page + 1)}
        return {"tools": tools, "nextCursor": "1"} if self._flags.page_loop else {"tools": tools}

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        arguments = params.get("arguments") or {}
        self._chat((params.get("_meta") or {}).get("progressToken"))
        time.sleep(self._flags.slow_call)
        if self._flags.ask:
            return {"content": [{"type": "text", "text": json.dumps(self._ask(self._flags.ask))}]}
        if params.get("name") == "fail":
            return {"content": [{"type": "text", "text": "told to fail"}], "isError": True}
        if params.get("name") == "environ":
            text = os.environ.get(arguments.get("name", ""), "")
        else:
            text = str(arguments.get("text", ""))
        return {"content": [{"type": "text", "text": text + "x" * self._flags.huge_result}]}

    def _ask(self, what: str) -> dict[str, Any]:
        self._asked += 1
        asked = f"asked-{self._asked}"
        method, params = REQUESTS[what]
        self._send({"jsonrpc": "2.0", "id": asked, "method": method, "params": params})
        unread: list[dict[str, Any]] = []
        while message := self._next():
            if message.get("id") == asked and "method" not in message:
                self._unread = unread
                return {key: value for key, value in message.items() if key not in ("jsonrpc", "id")}
            unread.append(message)
        sys.exit("the client has gone without an answer")

    def _chat(self, token: object) -> None:
        if self._flags.malformed_notification is not None:
            self._notify("notifications/message", {"level": self._flags.malformed_notification, "data": 1})
        if not self._flags.chatty:
            return
        self._notify("notifications/message", {"level": "info", "logger": "faulty", "data": "working on it"})
        if token is not None:
            self._notify("notifications/progress", {"progressToken": token, "progress": 1, "total": 2})

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _make_noise(self, lines: int) -> None:
        for number in range(lines):
            self._write(GARBAGE[number % len(GARBAGE)] + b"\n")

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        if self._flags.invalid_utf8:
            line = line.replace(b'"text": "', b'"text": "\xff')
        self._write(line)

    def _write(self, line: bytes) -> None:
        step = len(line) if self._flags.drip is None else 1
        try:
            with self._writing:
                for start in range(0, len(line), step):
                    sys.stdout.buffer.write(line[start : start + step])
                    sys.stdout.buffer.flush()
                    time.sleep(self._flags.drip or 0)
        except OSError:
            pass  # stdout is closed, by a fault or the client; `contextlib.suppress` would need a slow import


def _start_sleep(seconds: str, *, start_new_session: bool = False) -> None:
    import subprocess  # imported here, because few starts need it

    subprocess.Popen(["sleep", seconds], stdin=subprocess.DEVNULL, start_new_session=start_new_session)


def _start_daemon(pid_file: str, env: dict[str, str]) -> None:
    # A daemon is a process with another parent, group and session, and with /dev/null as its streams.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    if pid_file:
        with open(pid_file + ".new", "w") as file:  # noqa: PTH123 - one import less to boot with
            file.write(str(os.getpid()))
        os.rename(pid_file + ".new", pid_file)  # noqa: PTH104 - pathlib would slow down the start
    os.execve("/bin/sh", ["sh", "-c", "exec sleep 600"], env)  # noqa: S606 - a fixed command


def _tool(name: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


def _sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def _flags_of_this_start(flags: argparse.Namespace) -> argparse.Namespace:
    if flags.only_in is None:
        return flags
    lives, counted = flags.only_in
    with open(counted, "ab") as count:  # noqa: PTH123 - one import less to boot with
        count.write(b".")
        life = count.tell()
    record = () if flags.record is None else ("--record", flags.record)
    return flags if str(life) in lives.split(",") else _flags().parse_args(record)


if __name__ == "__main__":
    run()
