"""`Orchestrator`: runs a task with a model, its MCP servers and the agent's actions, in synchronous code."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from os import PathLike
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

import grue
from grue import messages as m
from grue.errors import MCPConfigError
from grue.hosting import EpisodeResumed, RunFolder
from grue.hosts.skill_agent import facts
from grue.hosts.skill_agent.actions import ActionRegistry
from grue.hosts.skill_agent.approval import AskPerson, Judge
from grue.hosts.skill_agent.configuration import AgentConfig
from grue.hosts.skill_agent.decision_loop import DecisionLoop, RunEnd
from grue.hosts.skill_agent.mcp_manager import McpManager
from grue.hosts.skill_agent.prompt import build_prompt
from grue.hosts.skill_agent.registry import AGENT, StepExecutionResult
from grue.hosts.skill_agent.run import Run, RunPast, error_text, read_run
from grue.hosts.skill_agent.served_skills import ServedSkills
from grue.hosts.skill_agent.skills import Skills
from grue.messages import Usage
from grue.protocol.tools.policy import UNMATCHED, may_match_tools_of, unmatched_patterns


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run; written to `result.json` if the run has a folder.

    Attributes:
        reason: Why the run ended; `detail` says it in words for people.
        answer: The answer of the model's `finish` action; empty if there was none.
        responses: The texts of the model's `respond` actions that were carried out.
        notes: The texts of the model's `note` actions that were carried out.
        questions: If the run is parked: the questions that a person has to answer.
    """

    run_id: str
    task: str
    model: str
    reason: facts.EndReason
    detail: str
    answer: str
    responses: tuple[str, ...]
    notes: tuple[str, ...]
    steps: tuple[StepExecutionResult, ...]
    questions: tuple[grue.ApprovalQuestion, ...]
    turns: int
    requests: int
    usage: Usage
    duration_s: float

    @property
    def succeeded(self) -> bool:
        """`True` if the model says that the task is done."""
        return self.reason == "finished"


class Orchestrator:
    """Runs a task, or resumes the run of a task.

    Args:
        folder: The run folder; `None`: no trace or result is written, and the run cannot be resumed.
        actions: The actions that the model can answer with; `None`: those of the skill agent.
        approve: Called with questions about actions that need approval; `None`: nobody can be asked.
        on_event: Called as `on_event(name, fields)` for each log event of this host between the start and the
            end of a run, such as `step_completed`.
        recorder: Records the run; for one run or resumption only. `None`: each gets a new recorder.

    Attributes:
        stream: Whether replies are streamed, so that the trace has the text as it arrives.
        scripted: Whether a script gives the replies, and not an LLM. This value is recorded in the trace.
        settings: JSON values that are recorded at a run's start, for a program that resumes the run.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        folder: str | PathLike[str] | None = None,
        actions: ActionRegistry | None = None,
        approve: AskPerson | None = None,
        on_event: Callable[[str, m.JsonObject], None] | None = None,
        recorder: grue.Recorder | None = None,
    ) -> None:
        if approve is not None and (not callable(approve) or iscoroutinefunction(approve)):
            found = "an `async def`" if callable(approve) else type(approve).__name__
            raise MCPConfigError(f"approve= wants a plain function of the questions, not {found}.")
        self.stream = False
        self.scripted = False
        self.settings: m.JsonObject = {}
        self._config = config
        self._folder = None if folder is None else Path(folder)
        self._registry = actions or ActionRegistry()
        self._approve = approve
        self._on_event = on_event
        self._recorder = recorder

    def run(self, task: str) -> RunResult:
        """Run a task until the run ends, and return the result.

        Raises:
            MCPConfigError: The configuration cannot be used.
            TraceError: The run folder cannot be written.
            KeyboardInterrupt: Ctrl-C was pressed. The run can be resumed from its folder.
        """
        return self._carry_out(task, None, ())

    def resume(self, decisions: Iterable[grue.ApprovalDecision] = ()) -> RunResult:
        """Go on with the run in `folder`, and return its result.

        The run may have been interrupted, killed or parked, or have ended without the action `finish`.
        An action that was under way when the process was killed is repeated only if it is read-only or
        idempotent. Otherwise the model is told that the action may have had an effect.

        Args:
            decisions: Answers to the questions of a parked run.

        Raises:
            TraceError: There is no run in the folder that can be resumed.
            MCPError: This object has no `folder`; or an error of `run`.
        """
        if self._folder is None:
            raise grue.MCPError("resume() needs the run's folder: Orchestrator(config, folder=...).")
        return self._carry_out("", read_run(self._folder), tuple(decisions))

    def _carry_out(
        self, task: str, past: RunPast | None, decisions: tuple[grue.ApprovalDecision, ...]
    ) -> RunResult:
        config, limits = self._config, self._config.limits
        skills = Skills(config.skills)
        if not os.path.isdir(config.workspace):  # noqa: PTH112 - never raises
            raise MCPConfigError(
                f"The workspace {config.workspace} is not a folder. Create it, or correct `workspace`."
            )
        began = time.monotonic() - (0.0 if past is None else past.lasted_s)
        new_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:6]}"
        run_id = new_id if past is None else past.started.episode_id
        # A recorder that has recorded anything cannot resume a run, so each run gets a new one.
        recorder = self._recorder or grue.Recorder()
        budget = grue.Budget(requests=limits.requests, tokens=limits.tokens, cost_usd=limits.cost_usd)
        with ExitStack() as stack:
            folder = None
            if self._folder is not None:
                resume = past is not None
                folder = RunFolder(self._folder, recorder, episode_id=run_id, resume=resume)
                stack.enter_context(folder)
                # Read the run again: another process may have continued it before the folder was locked.
                past = read_run(self._folder) if resume else None
            if self._on_event is not None:
                # Added after the folder's trace, which then has an event even if `on_event` raises.
                events = facts.FactEvents(self._on_event, facts.FACTS)
                recorder.add(events)
                stack.callback(recorder.remove, [events])
            runner = grue.Runner(
                llm=config.llm,
                recorder=recorder,
                budget=budget,
                keep="loop",
                context=grue.ContextPolicy(),
            )
            run = Run(
                run_id=run_id,
                task=task if past is None else past.started.task,
                began=began,
                config=config,
                registry=self._registry,
                recorder=recorder,
                runner=stack.enter_context(runner),
                skills=skills,
                folder=folder,
                stream=self.stream,
            )
            self._begin(run, past)
            return self._live(run, past, decisions)

    def _begin(self, run: Run, past: RunPast | None) -> None:
        config, version = self._config, grue.__version__
        if past is None:
            started = facts.RunStarted(
                episode_id=run.run_id,
                task=run.task,
                model=config.model,
                servers=tuple(config.servers) if config.mcp_enabled else (),
                scripted=self.scripted,
                max_turns=config.limits.max_turns,
                time_limit_s=config.limits.time_limit_seconds,
                version=version,
                settings=self.settings,
            )
            run.note(started)
        else:
            run.runner.spent, run.turns, run.results = past.spent, past.plans, past.results
            run.note(EpisodeResumed(episode_id=run.run_id, turns=past.plans, version=version))
        for problem in run.skills.problems:
            run.note(facts.SkillProblem(problem=problem))

    def _live(
        self, run: Run, past: RunPast | None, decisions: tuple[grue.ApprovalDecision, ...]
    ) -> RunResult:
        end = RunEnd("interrupted", "interrupted by Ctrl-C")
        try:
            run.manager = self._connect(run)
            _offer_served_skills(run)
            _note_unmatched(run)
            parked = None if past is None else past.asked
            judge = Judge(run=run, approve=self._approve, decisions=decisions, parked=parked)
            end = DecisionLoop(run, _conversation(run, past), judge, past).run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end = RunEnd("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            _disconnect(run)
            result = _end(run, end)
        return result

    def _connect(self, run: Run) -> McpManager | None:
        config = run.config
        if not config.mcp_enabled or not config.servers:
            return None
        manager = McpManager(
            tool_call_timeout_s=config.tool_call_timeout_s,
            on_connect_failure=config.on_connect_failure,
            optional=config.optional_servers,
            reconnect=config.reconnect,
            recorder=run.recorder,
        )
        try:
            tools = manager.connect_all(config.servers)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on without MCP
            server = getattr(error, "server", "")
            said = error_text(error)
            run.note(
                facts.McpConnectionFailed(server_name=server if isinstance(server, str) else "", error=said)
            )
            return None
        names = tuple(tool.name for tool in tools)
        run.note(facts.McpServersConnected(servers=manager.servers, tools=names, tool_count=len(names)))
        return manager


def _offer_served_skills(run: Run) -> None:
    wanted = run.config.skill_servers
    if run.manager is None or not wanted:
        return
    folder = Path() if run.config.path is None else run.config.path.parent
    servers = [name for name in wanted if name in run.manager.servers]
    served = ServedSkills(run.manager, servers, folder)
    run.skills.add(served.as_skills(), served.text)
    for problem in served.problems:
        run.note(facts.SkillProblem(problem=problem))


def _conversation(run: Run, past: RunPast | None) -> grue.Conversation:
    if past is not None and past.last_turn and run.folder is not None:
        return grue.Conversation.from_trace(run.folder.path, run.runner, name=run.run_id)
    system = build_prompt(
        run.offered,
        mcp_tools=run.tools,
        skills=run.skills.by_name.values(),
        instructions=run.config.instructions,
    )
    return run.runner.conversation(system, name=run.run_id)


def _note_unmatched(run: Run) -> None:
    """Record the policy's patterns that match no tool, because a misspelt `deny` rule denies nothing."""
    connected = () if run.manager is None else run.manager.servers
    listed = () if run.manager is None else run.manager.routes.listed.values()
    own = [kind.definition().name for kind in run.registry.types.values()]
    absent = [name for name in run.config.servers if name not in connected]
    patterns = [pattern for rule in run.config.policy.rules for pattern in rule.tools]
    for pattern in unmatched_patterns(patterns, (*own, *(tool.name for tool in listed))):
        if not any(may_match_tools_of(pattern, server) for server in absent):
            text = f"the tool policy has {pattern!r}{UNMATCHED}"
            run.note(m.ServerNoted(server=m.ServerName(AGENT), kind="bad_tool", text=text))


def _disconnect(run: Run) -> None:
    if run.manager is None:
        return
    error, servers = "", run.manager.servers
    try:
        run.manager.close_all()
    except Exception as failed:  # noqa: BLE001 - the run already has a result, which must not be lost
        error = error_text(failed)
    run.note(facts.McpServersDisconnected(servers=servers, error=error))


def _end(run: Run, end: RunEnd) -> RunResult:
    said = {
        kind: tuple(each.output for each in run.results if (each.action, each.status) == (kind, "completed"))
        for kind in ("respond", "note")
    }
    result = RunResult(
        run_id=run.run_id,
        task=run.task,
        model=run.config.model,
        reason=end.reason,
        detail=end.detail,
        answer=end.answer,
        responses=said["respond"],
        notes=said["note"],
        steps=tuple(run.results),
        questions=() if run.asked is None else run.asked.questions,
        turns=run.turns,
        requests=run.runner.spent.requests,
        usage=run.runner.spent.usage,
        duration_s=round(time.monotonic() - run.began, 3),
    )
    run.note(facts.RunEnded(reason=end.reason, detail=end.detail, turns=run.turns, steps=len(run.results)))
    if run.folder is not None:
        run.folder.write_result(result)
    return result
