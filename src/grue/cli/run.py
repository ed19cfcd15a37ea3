"""`grue run`: run a task with the skill agent (`grue.hosts.skill_agent`), which plans its actions as JSON."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from grue import messages as m
from grue.cli.episode_options import EpisodeOptions, chosen_backends, resumed_options
from grue.cli.live import JsonPrinter, LiveView, shown
from grue.cli.live_story import BOLD, CYAN, Line, Story, complaint
from grue.cli.live_terminal import Terminal
from grue.cli.runs import RUNS
from grue.cli.saying import GRUE, from_here, say, shown_argument
from grue.config.documents import parse_yaml
from grue.config.mcp_servers import without_network
from grue.engine.approval import ask_at_terminal
from grue.errors import MCPConfigError
from grue.hosts.skill_agent import AgentConfig, Orchestrator, RunResult, facts, load_config
from grue.hosts.skill_agent.registry import StepExecutionResult
from grue.hosts.skill_agent.run import read_run
from grue.runtime.files import os_errors_as
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.offline import offline_endpoint, reply_to_task
from grue.tracing.facts import EpisodeResumed, Fact, counted
from grue.tracing.message_words import DIM, GREEN
from grue.tracing.observers.run_folder import new_run_path
from grue.tracing.stats_table import duration
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, require_key

_TEXT_CHARS = 300
_PRINTED: tuple[type[Fact], ...] = (*facts.FACTS, facts.RunStarted, EpisodeResumed, facts.RunEnded)


class RunStory(Story):
    """Converts the messages of a run's trace into lines for people."""

    def __init__(self, *, beside_status: bool = False) -> None:
        super().__init__(beside_status=beside_status)
        self._printers: dict[type[Struct], Callable[[Any], Iterator[Line]]] = {
            facts.RunStarted: self._run_started,
            EpisodeResumed: self._resumed,
            facts.McpServersConnected: self._connected,
            facts.ActionsPlanned: self._planned,
            facts.StepEnded: self._step_ended,
            m.ServerNoted: self._noted,
        }

    def lines(self, body: Struct) -> Iterator[Line]:
        """Return the lines for a message; most messages have none."""
        if type(body) not in self._printers and isinstance(body, facts.EventFact) and body.level != "info":
            return iter((complaint(body.summary()),))
        return super().lines(body)

    def _run_started(self, body: facts.RunStarted) -> Iterator[Line]:
        yield Line(printable(body.task, _TEXT_CHARS), BOLD)
        yield Line(printable(f"model {body.model}"), DIM)
        if body.scripted:
            yield Line("The model is a script that comes with grue. No LLM is used.", DIM)

    def _connected(self, body: facts.McpServersConnected) -> Iterator[Line]:
        yield Line(printable(body.summary(), _TEXT_CHARS), DIM)

    def _planned(self, body: facts.ActionsPlanned) -> Iterator[Line]:
        yield Line("")
        yield Line(f"Turn {body.turn}", BOLD)
        if body.thought:
            yield Line(f"  {printable(body.thought, _TEXT_CHARS)}", DIM, "  ")

    def _step_ended(self, body: facts.StepEnded) -> Iterator[Line]:
        result = body.result
        if result.status != "completed":
            yield _step_line(result)
            yield complaint(result.error or result.status)
        elif result.action in ("respond", "finish"):
            first, style = ("  ", "") if result.action == "respond" else ("> ", GREEN)
            for row in f"{first}{result.output.strip()}".split("\n"):
                yield Line(printable(row), style, "  ")
        else:
            yield _step_line(result)


def _step_line(result: StepExecutionResult) -> Line:
    name = printable(f"{result.action} {result.target}".rstrip(), 80)
    said = printable(" ".join(result.output.split()), _TEXT_CHARS)
    lasted = f" ({duration(result.duration_s)})" if result.duration_s >= 0.1 else ""
    return Line(f"{lasted}{': ' if said else ''}{said}", DIM, "    ", f"  {name}", CYAN)


class RunLines(JsonPrinter):
    """Prints a run as JSON, one object a line: the events of the skill agent."""

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        """Print the events that a message of the trace records."""
        body = envelope.body
        if isinstance(body, _PRINTED):
            for event in body.log_lines():
                self.write({"type": event.event, "turn": envelope.turn, **event.fields})


EXAMPLE = Path(__file__).resolve().parents[1] / "hosts" / "skill_agent" / "example" / "agent.yaml"
# The exit status by the reason why the run ended; 1 for every other reason.
STATUSES = {"finished": 0, "parked": 3, "turn_limit": 4, "step_limit": 4, "time_limit": 4, "budget": 4}
_RECORDED = ("agent", "offline", "model", "base_url")


class RunOptions(EpisodeOptions, frozen=True, kw_only=True):
    """The options of `grue run`; see its help. Without `task`, the task in the agent's file is run."""

    agent: Path | None = None
    task: str = ""
    stream: bool = False
    langfuse: bool = False
    otel: bool = False
    output: str = "live"


def run_task(options: RunOptions) -> RunResult:
    """Run or resume a task, show it while it runs, and return its result."""
    if options.resume is None:
        return _run(options)
    settings = read_run(options.resume).started.settings
    return _run(resumed_options(options, settings, _RECORDED, "grue run"))


def _run(options: RunOptions) -> RunResult:
    path = options.agent or _default_agent(options)
    config = load_config(path)
    task = options.task or config.task
    if not task and options.resume is None:
        fault = f"There is no task. Name one: {GRUE} run {shown_argument(path)} 'TASK'; or set `task`."
        raise MCPConfigError(fault)
    _choose_model(config, options)
    folder = options.resume or options.run_dir or new_run_path(RUNS)
    recorder, folder, is_quiet = Recorder(), folder.absolute(), options.output == "quiet"
    with ExitStack() as stack:
        stack.callback(_remove_if_empty, folder)
        backends = chosen_backends(recorder, folder.name, langfuse=options.langfuse, otel=options.otel)
        stack.enter_context(backends)
        lines, terminal = RunLines(sys.stdout), Terminal(sys.stdout)
        live = LiveView(terminal, story=RunStory(beside_status=terminal.redraws))
        view = stack.enter_context(shown(recorder, options.output, lines, live))
        approve = ask_at_terminal if sys.stdin.isatty() and sys.stderr.isatty() else None
        agent = Orchestrator(config, folder=folder, approve=approve, recorder=recorder)
        agent.stream, agent.scripted = options.stream, options.offline
        chosen = {name: getattr(options, name) for name in _RECORDED}
        agent.settings = msgspec.to_builtins({**chosen, "agent": str(path.absolute())}, enc_hook=str)
        try:
            result = agent.run(task) if options.resume is None else agent.resume()
        except KeyboardInterrupt:
            view.close()
            if options.output != "json":
                resume = f"{GRUE} run --resume {shown_argument(from_here(folder))}"
                say(f"\ninterrupted. To go on: {resume}", err=is_quiet)
            raise
        view.close()
        if options.output == "json":
            lines.write({**msgspec.to_builtins(result), "type": "result"})
            return result
        if result.answer or not is_quiet:
            say(result.answer if is_quiet else "")
        say(_summary(result, folder, path), err=is_quiet)
    return result


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # there is no such folder, or it is not empty
        folder.rmdir()


def _copy_example(copy: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{copy.name}.", dir=copy.parent) as unfinished:
        files = Path(unfinished, copy.name)
        for source in filter(Path.is_file, EXAMPLE.parent.rglob("*")):
            target = files / source.relative_to(EXAMPLE.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        files.rename(copy)  # so that a later command never finds half of the example


def _default_agent(options: RunOptions) -> Path:
    here = Path("agent.yaml")
    if here.exists() or not options.offline:
        return here
    copy = Path("weekly-report")
    if not copy.exists():
        with os_errors_as(MCPConfigError, f"write the example into {copy}"):
            parse_yaml(EXAMPLE.read_text(encoding="utf-8"), copy / EXAMPLE.name)  # raises if pyyaml is absent
            _copy_example(copy)
        say(f"The bundled example is now in the folder {copy}.", err=True)
    if not (copy / EXAMPLE.name).exists():
        raise MCPConfigError(
            f"The folder {copy} has no {EXAMPLE.name}. Rename or remove the folder, and {GRUE} run --offline"
            " writes the example."
        )
    return copy / EXAMPLE.name


def _choose_model(config: AgentConfig, options: RunOptions) -> None:
    llm = config.llm
    assert isinstance(llm, LlmSettings), "load_config reads settings"
    if options.offline:
        config.llm = offline_endpoint(reply_to_task, llm)
        config.servers = {name: without_network(server) for name, server in config.servers.items()}
        return
    llm = structs.replace(llm, model=llm.model if options.model is None else options.model)
    if options.base_url is not None and options.base_url != llm.base_url:
        llm = structs.replace(llm, base_url=options.base_url, api_key=None)
    config.llm = llm = LlmEndpoint(llm).settings
    otherwise = ", name another endpoint with --base-url, or try the example with --offline"
    require_key(llm.base_url, llm.api_key, otherwise)


def _summary(result: RunResult, folder: Path, agent: Path) -> str:
    where = shown_argument(from_here(folder))
    numbers = ((result.turns, "turn"), (len(result.steps), "step"), (result.requests, "request"))
    counts = ", ".join(counted(count, noun) for count, noun in numbers)
    limit = {"turn_limit": "max_turns", "step_limit": "max_steps"}.get(result.reason, "the limit")
    first = f", first raise {limit} in {shown_argument(from_here(agent))}, then"
    first = first if STATUSES.get(result.reason) == 4 else ""
    resume = f"\nTo go on{first}: {GRUE} run --resume {where}"
    goes_on = "" if result.reason in ("finished", "gave_up") else resume
    questions = "".join(f"\n  {each.name} {each.arguments}" for each in result.questions)
    ended = f"{result.reason}: {result.detail}"
    ended += f"; {counts}, {result.duration_s:.1f} s, {result.model}{questions}"
    return f"{ended}\nThe trace is in {where}; to read it: {GRUE} trace show {where}{goes_on}"
