"""The same 25 faults through grue and the frameworks beside it: what comes of the turn, when, what is left.

    .venv/bin/python benchmarks/peers/faults.py                      all sides that are installed
    .venv/bin/python benchmarks/peers/faults.py --only grue,fastmcp  some sides; --faults NAME,... some faults
    .venv/bin/python benchmarks/peers/faults.py --markdown docs/faults.md   write the page

Each cell is one new process that runs one turn, as that side's worker in `workers/` says. It has a
supervisor of its own, to which whatever is orphaned falls, also what has left the process group. So what is
left is counted without asking the framework."""

import argparse
import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from sides import BENCHMARKS, TURNS, Side
from worker_process import ENVIRONMENT, _below

sys.path.append(str(BENCHMARKS / "servers"))
import chat_server

FAULTY = BENCHMARKS.parent / "src" / "grue" / "testing" / "faulty_server.py"
LIMIT_S, DEADLINE_S, GRACE_S = 4.0, 20.0, 3.0
IMPORTS_S = 60.0
"""How long a side may take until its server is asked for the first time."""
AT_ONCE = 6
RESULTS = BENCHMARKS / "peers" / "results-faults.json"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Fault(NamedTuple):
    """A fault: flags of the server, what the model's endpoint does, and what happens to the host."""

    name: str
    title: str
    server: tuple[str, ...] = ()
    model: str = ""
    host: str = ""


FAULTS = [
    Fault("calm", "nothing goes wrong"),
    Fault("missing", "the server's program does not exist", ("missing",)),
    Fault("exits-at-start", "the server exits as it starts", ("--exit-at", "start")),
    Fault("silent-at-start", "the server never answers the handshake", ("--silent-at", "initialize")),
    Fault("silent-at-list", "the server never lists its tools", ("--silent-at", "list")),
    Fault("hangs", "the server never answers the call", ("--silent-at", "call")),
    Fault(
        "hangs-for-good",
        "the server never answers the call, and ignores the end of its input and SIGTERM",
        ("--silent-at", "call", "--ignore-eof", "--ignore-term"),
    ),
    Fault("exits", "the server exits in the call", ("--exit-at", "call")),
    Fault("killed", "the server is killed in the call", ("--kill-at", "call")),
    Fault(
        "stubborn", "the server ignores the end of its input and SIGTERM", ("--ignore-eof", "--ignore-term")
    ),
    Fault("grandchild", "the server leaves a child that holds its output", ("--grandchild",)),
    Fault("session", "the server leaves a child that has its own session (setsid)", ("--runaway", "600")),
    Fault("daemon", "the server leaves a daemon (double fork, setsid)", ("--daemon",)),
    Fault("stderr", "the server writes 10 MB to stderr", ("--flood-stderr", "10000000")),
    Fault("noise", "the server writes 50 lines of garbage before each answer", ("--noise", "50")),
    Fault("utf8", "the server's answer is not UTF-8", ("--invalid-utf8",)),
    Fault("huge", "the server's answer has 20 MB", ("--huge-result", "20000000")),
    Fault("wrong-id", "the server answers with an id that no request has", ("--wrong-id",)),
    Fault(
        "closes", "the server closes its output in the call, and keeps running", ("--close-stdout-at", "call")
    ),
    Fault("double-tool", "the server lists two tools with the same name", ("--double-tool", "--pages", "2")),
    Fault("429", "the model answers 429 once, Retry-After 1", model="429"),
    Fault("500", "the model answers 500 once", model="500"),
    Fault("cut", "a reply of the model is cut in the middle, once", model="cut"),
    Fault("arguments", "the arguments of the model's call are not JSON, once", model="arguments"),
    Fault("ctrl-c", "Ctrl-C while the call hangs", ("--silent-at", "call"), host="SIGINT"),
    Fault(
        "host-killed",
        "the host is killed in the call; the server ignores the end of its input",
        ("--silent-at", "call", "--ignore-eof"),
        host="SIGKILL",
    ),
]
"""A calm turn, to see that all is well, and 25 faults."""

SIDES = [
    Side("grue", "peers/workers/grue_turn.py", note="Default settings; a trace in a file."),
    *(side for side in TURNS if side.venv),
]


# --- One turn with one fault, in a process of its own ---


class _Model(BaseHTTPRequestHandler):
    """The endpoint: the script of `chat_server`, but for the first request."""

    protocol_version = "HTTP/1.1"
    fault: ClassVar = ""
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(self.path)
        fault = self.fault if len(self.asked) == 1 else ""
        if fault in ("429", "500"):
            body = json.dumps({"error": {"message": "try again", "type": "made_up"}}).encode()
            self._send(int(fault), "application/json", body, {"Retry-After": "1"})
            return
        if request.get("stream"):
            kind, body = "text/event-stream", chat_server.stream(request)
        else:
            kind, body = "application/json", json.dumps(chat_server.completion(request)).encode()
        if fault == "arguments":
            body = re.sub(rb'"arguments": "(?:\\.|[^"\\])*"', rb'"arguments": "{\\"text\\": "', body)
        self._send(200, kind, body, {}, cut=fault == "cut")

    def _send(self, status: int, kind: str, body: bytes, more: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def supervise(side: Side, fault: Fault) -> dict[str, Any]:
    """Run one turn and say what came of it; whatever it leaves is counted, then killed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    # A shell starts what runs in the background with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _Model.fault = fault.model
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    seen, said = folder / "seen", (folder / "stderr").open("wb+")
    server = [sys.executable, "-I", "-S", str(FAULTY), "--record", str(seen), *fault.server]
    if "missing" in fault.server:
        server = [str(folder / "no-such-server")]
    command = [*side.command, f"http://127.0.0.1:{endpoint.server_port}/v1", "calls-1", *server]
    environ = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environ |= {"BENCH_LIMIT_S": str(LIMIT_S), "BENCH_FOLDER": str(folder)}
    pipe = subprocess.PIPE
    worker = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=said, env=environ, start_new_session=True
    )
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    worker.stdin.close()
    found = _watch(worker, fault, seen)
    found["left"] = _left()
    said.seek(0)
    found["stderr"] = said.read()[-500:].decode(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _watch(worker: "subprocess.Popen[bytes]", fault: Fault, seen: Path) -> dict[str, Any]:
    """Follow the worker to its end, or for as long as a turn may take once its server has begun."""
    assert worker.stdout is not None
    line, hit_at, begun, until = b"", 0.0, False, time.monotonic() + IMPORTS_S
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while time.monotonic() < until:
            if selector.select(0.05):
                chunk = os.read(worker.stdout.fileno(), 65536)
                line += chunk
                if not chunk:
                    break
            if not begun and seen.exists():
                begun, until = True, time.monotonic() + DEADLINE_S
            if fault.host and begun and not hit_at and b"tools/call" in seen.read_bytes():
                hit_at = time.monotonic()
                os.kill(worker.pid, getattr(signal, fault.host))
    try:
        status = worker.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
        status = None
    line += worker.stdout.read()
    took = time.monotonic() - hit_at if hit_at else None
    words = json.loads(line.splitlines()[0]) if line.strip() else {}
    return {"status": status, "after_hit_s": took, **words}


def _left() -> int:
    """Return how many processes are still there, after as long as a polite end takes."""
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return 0
        time.sleep(0.05)
    left = {*_below(os.getpid())}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


# --- All of them, and the table ---


def run(side: Side, fault: Fault) -> dict[str, Any]:
    """Run one cell in a supervisor of its own."""
    command = [sys.executable, __file__, "--one", side.name, fault.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5 * DEADLINE_S)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        found = {"status": None, "left": 0, "harness": str(error)}
    print(f"{side.name:15} {fault.name:16} {cell(found, fault)}", flush=True)
    return found


def cell(found: dict[str, Any], fault: Fault) -> str:
    """Return the outcome in a few words."""
    if "harness" in found:
        return "not run"
    wall = found.get("wall_s")
    if fault.host == "SIGKILL":
        said = "ended"
    elif found["status"] is None and wall is None:
        said = f"**no end** in {DEADLINE_S:g} s"
    elif "answer" in found:
        said = "answered" if found["answer"] == "done" else "another answer"
        said += f" {wall:.1f} s"
    elif "error" in found:
        said = f"`{found['error']}` {wall:.1f} s"
    else:
        said = f"ended with {found['status']}"
    if found["after_hit_s"] is not None and fault.host == "SIGINT" and found["status"] is not None:
        said = re.sub(r" [\d.]+ s$", f" {found['after_hit_s']:.1f} s", said)
    return said + (f", **{found['left']} left**" if found["left"] else "")


def table(results: dict[tuple[str, str], dict[str, Any]], sides: list[Side], faults: list[Fault]) -> str:
    """Return the table in Markdown, and a line of totals."""
    rows = [["fault", *(side.name for side in sides)], ["---"] * (1 + len(sides))]
    rows += [
        [fault.title, *(cell(results[side.name, fault.name], fault) for side in sides)] for fault in faults
    ]
    for what, count in (
        ("turns without an end", lambda found: cell(found, FAULTS[1]).startswith("**no end**")),
        ("turns that left processes", lambda found: bool(found["left"])),
    ):
        counts = [sum(count(results[side.name, each.name]) for each in faults) for side in sides]
        rows.append([f"**{what}**", *map(str, counts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(text: str, sides: list[Side], took_s: float) -> str:
    """Return the page of the documentation."""
    versions = "\n".join(f"- {side.name}: {side.version or 'this checkout'}" for side in sides)
    return f"""# Faults, in grue and in other frameworks

<!-- made by benchmarks/peers/faults.py --markdown docs/faults.md -->

This page compares what grue and other frameworks do when something goes wrong in a turn. The turn starts a
server process, calls one tool, and gets the model's answer. In each row another thing goes wrong. Each cell
shows one turn in a new process (the host): how the turn ended (for an error, its class), how many seconds it
took, and how many processes were `left` three seconds after the host had ended. `no end` means that the turn
was still running {DEADLINE_S:g} s after its server had read the first message. Three seconds later the
host was killed. If no server reads a message, a turn may take up to a minute. For Ctrl-C the seconds are
those from the signal to the end of the host.

{text}

`answered` means that the turn ended with the model's answer; if the call failed, the model had read that.
An answer is not always better than an error. `another answer` means that the turn ended with another text
than the model's, for example a text that says that the agent gave up. The table does not show whether an
error's text helps.

`benchmarks/peers/faults.py` runs all turns, in {took_s / 60:.0f} minutes on two busy cores. Where a
framework has time limits for a server's start and for a call, they are set to {LIMIT_S:g} s. Apart from
that, each framework is configured [as on the page about
performance](performance.md#beside-other-frameworks). The scripts are `benchmarks/peers/workers/*_turn.py`,
of 25 to 55 lines each. The server is `grue.testing.faulty_server`. The versions:

{versions}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="25 faults through grue and the frameworks beside it.")
    parser.add_argument("--only", help="sides, with commas")
    parser.add_argument("--faults", help="faults, with commas")
    parser.add_argument("--markdown", type=Path, help="write the page of the documentation")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    by_name = {side.name: side for side in SIDES}
    faults = {fault.name: fault for fault in FAULTS}
    if options.one:
        found = supervise(by_name[options.one[0]], faults[options.one[1]])
        print(json.dumps(found), flush=True)
        os._exit(0)
    wanted = options.only.split(",") if options.only else [side.name for side in SIDES if side.installed]
    sides = [by_name[name] for name in wanted]
    chosen = [faults[name] for name in options.faults.split(",")] if options.faults else FAULTS
    began = time.monotonic()
    cells = [(side, fault) for fault in chosen for side in sides]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda each: run(*each), cells)
        results = {(side.name, fault.name): each for (side, fault), each in zip(cells, found, strict=True)}
    took_s = time.monotonic() - began
    print(table(results, sides, chosen), f"{took_s:.0f} s", sep="\n\n")
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept |= {f"{side} {fault}": each for (side, fault), each in results.items()}
    kept["took_s"] = took_s + (kept.get("took_s", 0.0) if options.faults or options.only else 0.0)
    RESULTS.write_text(json.dumps(kept, indent=1))
    if options.markdown:
        sides = [side for side in SIDES if f"{side.name} calm" in kept]
        whole = {
            (side.name, fault.name): kept[f"{side.name} {fault.name}"] for side in sides for fault in FAULTS
        }
        options.markdown.write_text(page(table(whole, sides, FAULTS), sides, kept["took_s"]))


if __name__ == "__main__":
    main()
