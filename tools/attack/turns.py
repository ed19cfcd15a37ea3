"""Cases with a turn around them: a real `Runner`, a run folder, a recorder, and whatever is hostile."""

import http.client
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import files
from casebook import CANARY, Case, arguments
from damage import odd_text
from judge import EARLY_SHARE, LATE_S, Findings, peak_since
from replies import AS_TEXT

from grue import LlmSettings, Runner, StdioServer, TurnLimits, TurnRequest
from grue.errors import ActorCrashed, MCPError
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profiles import OPENROUTER
from grue.protocol.retry import RetryPolicy
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Recorder
from grue.testing import replay
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.server_specs import HttpServer
from grue.tracing.observers.run_folder import RunFolder

_LIFETIMES: Mapping[str, dict[str, Any]] = {
    "turn": {},
    "episode": {"keep": "loop"},
    "ahead": {"keep": "loop", "start": "after_turn"},
    "kept": {"keep": "sessions"},
}
_READ_SHARE = 0.1
"""Of the cases, those whose trace is read by every command."""

_REQUESTS = 60
"""More than a turn makes here."""


class Executed:
    """The function tool of the cases that have no server, and what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def act(self, path: str = "", mode: str = "", count: int = 0) -> str:
        """Do it."""
        self.calls.append({"path": path, "mode": mode, "count": count})
        return "done"


def run(case: Case, port: int, folder: Path, findings: Findings) -> str:
    """Run the turns of a case, judge them, and say what came of it."""
    executed = Executed()
    recorder = Recorder()
    with RunFolder(folder / "run", recorder, episode_id=case.name):
        runner = Runner(
            llm=_settings(case, port),
            servers=_servers(case, port, folder, executed),
            limits=TurnLimits(
                server_startup_timeout_s=min(1.0, case.limit_s), tool_call_timeout_s=min(1.0, case.limit_s)
            ),
            recorder=recorder,
            process_limits=ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
            **_LIFETIMES[case.lifetime],
        )
        with _closed(runner, findings):
            turns = range(1 if case.lifetime == "turn" else 2)
            outcomes = [_turn(case, runner, turn, findings) for turn in turns]
    findings.grown = peak_since(findings.begun)  # reading the trace afterwards is not part of the turn
    if case.rng("read").random() < _READ_SHARE:
        files.read_commands(folder / "run" / "trace.jsonl", findings)
    told = _told(case, port, folder)
    _judge_calls(case, executed.calls + _server_calls(folder), told, findings)
    _judge_trace(folder / "run", findings)
    attacks = ", ".join(sorted({each["attack"] for each in told})) or "nothing hostile"
    return f"{attacks} -> {', '.join(outcomes)}"


@contextmanager
def _closed(runner: Runner, findings: Findings) -> Iterator[None]:
    try:
        yield
    finally:
        started = time.monotonic()
        runner.close()
        if (elapsed_s := time.monotonic() - started) > 3.0:
            findings.add(f"late: close() took {elapsed_s:.2f} s")


def _turn(case: Case, runner: Runner, turn: int, findings: Findings) -> str:
    rng = case.rng("words", turn)
    odd = case.kind == "words"
    request = TurnRequest[str](
        system=odd_text(rng) if odd else "Use the tool.",
        user=_words(case, rng) if odd else "Go on.",
        turn_timeout_s=case.limit_s,
        on_delta=(lambda _: None) if case.stream else None,
    )
    started = time.monotonic()
    try:
        ended = runner.run_turn(request)
        outcome: str = ended.kind
        if outcome == "answered" and AS_TEXT in str(ended.response):
            findings.add(f"answered with a tool call as text: {ended.response!r:.300}")
    except ActorCrashed as error:
        cause = error.__cause__
        findings.add(f"crash: {error} ({type(cause).__name__}: {cause})"[:500])
        outcome = "ActorCrashed"
    except MCPError as error:
        outcome = type(error).__name__
        try:
            str(error).encode()
        except UnicodeEncodeError:
            findings.add(f"unprintable: {outcome} has a text that cannot be printed")
    except Exception as error:  # noqa: BLE001 - this is what is searched for
        outcome = type(error).__name__
        findings.add(f"untyped: {type(error).__name__}: {error}"[:500])
    elapsed_s = time.monotonic() - started
    if outcome == "TurnTimedOut" and elapsed_s < case.limit_s * EARLY_SHARE:
        findings.add(f"early: a turn of {case.limit_s:g} s timed out after {elapsed_s:.2f} s")
    findings.elapsed_s = max(findings.elapsed_s, elapsed_s)
    if elapsed_s > case.limit_s + LATE_S:
        findings.add(f"late: a turn of {case.limit_s:g} s took {elapsed_s:.2f} s")
    return outcome


def _words(case: Case, rng: Random) -> str:
    text = odd_text(rng) or "x"
    size = len(text.encode("utf-8", "replace"))
    return text * (rng.choice((1, 5, 10)) * 1_000_000 // size) if case.big else text


def _settings(case: Case, port: int) -> LlmSettings:
    profile = OPENROUTER if case.kind == "models" else FORMATS[case.wire].profile
    return LlmSettings(
        base_url=f"http://127.0.0.1:{port}/llm/{case.name}/v1",
        model="hostile",
        api_key="sk-attack-0123456789abcdef",
        profile=profile,
        retry=RetryPolicy(max_retries=2, initial_delay_s=0.01, max_delay_s=0.05, timeout_s=case.limit_s + 1),
    )


def _servers(case: Case, port: int, folder: Path, executed: Executed) -> dict[str, Any]:
    if case.kind == "stdio":
        script = Path(__file__).with_name("tool_server.py")
        args = ("-I", str(script), case.name, str(folder / "calls"), f"postgres://user:{CANARY}@host/db")
        return {"tools": StdioServer(name="tools", command=sys.executable, args=args)}
    if case.kind == "http":
        return {"tools": HttpServer(name="tools", url=f"http://127.0.0.1:{port}/mcp/{case.name}")}
    return {"tools": FunctionTools({"act": executed.act})}


def _told(case: Case, port: int, folder: Path) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/told/{case.name}")
    told: list[dict[str, Any]] = json.loads(connection.getresponse().read())
    connection.close()
    file = folder / "calls.told"
    return told + [{"attack": name} for name in (file.read_text().splitlines() if file.exists() else ())]


def _server_calls(folder: Path) -> list[Any]:
    file = folder / "calls"
    return [json.loads(row) for row in file.read_text().splitlines()] if file.exists() else []


def _judge_calls(case: Case, calls: list[Any], told: list[dict[str, Any]], findings: Findings) -> None:
    """A tool may run with what the model really asked for; with anything else only if nobody could tell."""
    if not all(each.get("strict", True) for each in told):
        return
    really = [arguments(case, number) for number in range(_REQUESTS)]
    for call in calls:
        if call not in really:
            findings.add(f"wrong arguments: {json.dumps(call)[:300]}")


def _judge_trace(folder: Path, findings: Findings) -> None:
    for file in folder.rglob("*"):
        if file.is_file() and CANARY.encode() in file.read_bytes():
            findings.add(f"the server's secret is in {file.name}")
    try:
        replay(folder)
    except AssertionError as error:
        findings.add(f"trace: {error}"[:600])
    except Exception as error:  # noqa: BLE001 - this is what is searched for
        findings.add(f"trace: {type(error).__name__}: {error}"[:300])
    shutil.rmtree(folder, ignore_errors=True)
