"""Who takes part, where each lives, how its worker is started, and what to know before comparing it."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent
VENVS = HERE / ".venvs"
NPM_PACKAGE = "@modelcontextprotocol/server-sequential-thinking"


def requirements(venv: str) -> Path:
    return HERE / "requirements" / f"{venv}.txt"


def stamp(venv: str) -> Path:
    """Return where it stands which requirements have been installed."""
    return VENVS / venv / "installed.txt"


def is_installed(venv: str) -> bool:
    return stamp(venv).exists() and stamp(venv).read_text() == requirements(venv).read_text()


class Side(NamedTuple):
    """One side of the comparison.

    Attributes:
        worker: Below `benchmarks/`.
        role: What the worker is told to be; for those of this project.
        venv: The virtual environment it needs and its requirements file; empty: this interpreter.
        note: What it does that the others do not, or the reverse.
    """

    name: str
    worker: str
    role: str = ""
    venv: str = ""
    note: str = ""

    @property
    def python(self) -> Path:
        return VENVS / self.venv / "bin" / "python" if self.venv else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether what it needs is there, as pinned."""
        return not self.venv or is_installed(self.venv)

    @property
    def version(self) -> str:
        """Its name and version as pinned, and the MCP SDK's; empty for this project's own."""
        if not self.venv:
            return ""
        pins = requirements(self.venv).read_text().splitlines()
        shown = [pin for pin in pins if pin == pins[0] or pin.startswith("mcp==")]
        return ", ".join(re.sub(r"\[.*\]", "", pin).replace("==", " ") for pin in shown)

    @property
    def command(self) -> list[str]:
        return [str(self.python), str(BENCHMARKS / self.worker), *filter(None, [self.role])]


def _peer(name: str, worker: str, note: str) -> Side:
    return Side(name, f"peers/workers/{worker}.py", venv=name, note=note)


TURNS = [
    Side(
        "grue",
        "turn_worker.py",
        "grue",
        note="Default settings: a new event loop and new HTTP connections for each turn. It writes a trace "
        "to a file; of the other sides only grue-ahead does so.",
    ),
    Side(
        "grue-ahead",
        "turn_worker.py",
        "ahead",
        note="keep='loop' with start='after_turn'. The sides take their turns one after another. The process "
        "for this side's next turn boots while the other sides take theirs, so the boot is not in its time; "
        "in a game it would boot while the host plays its move. That process already runs "
        "when the turn ends, so it counts in the last column. HTTP connections stay open. It writes a trace "
        "to a file.",
    ),
    Side(
        "sdk-script",
        "turn_worker.py",
        "script",
        note="A script with the MCP SDK and httpx. A new event loop for each turn; no trace, no limits.",
    ),
    Side(
        "floor",
        "turn_worker.py",
        "floor",
        note="A script with blocking pipes and one socket that checks nothing. No turn that starts a "
        "server can be faster.",
    ),
    _peer(
        "pydantic-ai",
        "pydantic_ai_turn",
        "One agent and one event loop for all turns. The program enters the toolset for each turn, so that "
        "HTTP connections stay open. Entering the agent instead is simpler and takes about 35 ms more.",
    ),
    _peer(
        "openai-agents",
        "openai_agents_turn",
        "One event loop for all turns; HTTP connections stay open. Its tracing, which by default sends "
        "traces to OpenAI, is switched off.",
    ),
    _peer(
        "langgraph",
        "langgraph_turn",
        "One event loop for all turns; HTTP connections stay open. The program opens a session for each "
        "turn; otherwise one server process would list the tools, and a new one would serve each call.",
    ),
    _peer(
        "smolagents",
        "smolagents_turn",
        "It sends a long prompt of its own, and the model gives the answer by a tool call. Its calls block; "
        "MCP runs in a thread. It is installed with an older MCP SDK, because it does not work with a newer "
        "one, and with websockets.",
    ),
    _peer(
        "fastmcp",
        "fastmcp_turn",
        "An MCP client without an agent, so the script has its own agent loop with httpx; no trace, no "
        "limits. One event loop for all turns; HTTP connections stay open.",
    ),
    _peer(
        "strands-agents",
        "strands_agents_turn",
        "It streams every reply; MCP runs in a thread. One event loop for all turns; the program passes an "
        "HTTP client whose connections stay open. Without that argument it would make a client for each "
        "completion, which takes about 50 ms more.",
    ),
]

GRUE_ASK = Side(
    "grue",
    "peers/workers/grue_ask.py",
    note="Two tasks of one event loop. Each message is written to a trace file.",
)
ASKS = [
    GRUE_ASK,
    Side("grue, no trace", "peers/workers/grue_ask.py", note="The same without a trace file."),
    _peer(
        "autogen-core",
        "autogen_core_ask",
        "`send_message` to a `RoutedAgent`, in one event loop; no trace file.",
    ),
    _peer(
        "pykka",
        "pykka_ask",
        "`ask` to an actor that has its own thread; no event loop, no trace, no bound on its mailbox.",
    ),
]


class Server(NamedTuple):
    """An MCP server that every side starts afresh for each turn.

    Attributes:
        command: Its last item is a path by which its processes are known.
        result: What a tool call's result contains, wherever it went well.
        absent: Why it cannot be had here; empty if it can.
    """

    name: str
    title: str
    command: Sequence[str]
    result: str
    absent: str = ""


def servers() -> list[Server]:
    """Return the three servers."""
    plain = (sys.executable, "-I", "-S", str(BENCHMARKS / "servers" / "plain_server.py"))
    slow = (sys.executable, "-I", "-S", str(HERE / "servers" / "slow_server.py"))
    return [
        Server("plain", "a server that boots in about 30 ms", plain, "a brass lantern"),
        Server("slow", "a server that takes 0.6 s to boot", slow, "a brass lantern"),
        _sequential_thinking(),
    ]


def _sequential_thinking() -> Server:
    title = "npm's sequential-thinking, in node"
    checkout = BENCHMARKS.parent / ".npm-servers"
    folder = os.environ.get("GRUE_NPM_SERVERS") or (str(checkout) if checkout.is_dir() else "")
    node = shutil.which("node")
    entry = Path(folder or ".").resolve() / "node_modules" / NPM_PACKAGE / "dist" / "index.js"
    absent = ""
    if not folder:
        absent = f"set GRUE_NPM_SERVERS to a folder in which npm has installed {NPM_PACKAGE}"
    elif not node or not entry.is_file():
        absent = f"no {'node' if not node else NPM_PACKAGE + ' in GRUE_NPM_SERVERS'}"
    # The length of its memory: one thought means that the process is fresh.
    return Server("node", title, (node or "node", str(entry)), "thoughtHistoryLength", absent)
