"""Put together what all turns of a runner share: the LLM actor's factory, the tool servers, the recorder."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.actors.llm import EndpointActors, LendingFactory, LentConversation, LlmFactory
from grue.engine import tool_servers
from grue.engine.approval import Approval
from grue.engine.conversations.kept_conversation import KeptConversation
from grue.engine.tool_servers import PresumedListings
from grue.errors import ConversationError, MCPConfigError, NothingToResume, TraceError
from grue.field_checks import shown
from grue.policies import OnToolDrift
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.context.history import History
from grue.protocol.tools.lock import ToolLock
from grue.runtime.files import as_path
from grue.runtime.forks import here_and_in_children
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.safe_text import printable, well_formed
from grue.runtime.secrets.secret_forms import secrets_in
from grue.runtime.trace.file import TraceOptions, TraceWriter, refuse_unreadable
from grue.runtime.trace.format import TRACE_FILE
from grue.runtime.trace.recorder import Envelope, Observer, Recorder
from grue.runtime.version import __version__
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.host_tools import ToolServer
from grue.tool_sessions.server_requests import Abilities, Elicit, Sample
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings
from grue.transports.mcp.client_options import ClientOptions


class TurnsUnderWay:
    """The turns of a runner that are running, and their numbers. Thread-safe.

    In a trace, a running turn looks like one whose process was killed. `require_ended` keeps a process from
    resuming a turn that it is running itself. `beginning` gives turns that run at the same time different
    numbers (unless requests set them), because a trace tells the messages of its turns apart by the number.
    """

    def __init__(self) -> None:
        self.conversations: WeakValueDictionary[str, KeptConversation] = WeakValueDictionary()
        self._running: Counter[int] = Counter()
        self._highest = 0
        here_and_in_children(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()
        self.resuming = threading.Lock()  # held while a caller finds out which turn to resume
        # Held while a fork runs: two forks of one turn have the same number, so a trace would mix their
        # messages.
        self.forking = threading.Lock()
        self._users = 0  # open batches, and running turns that are in no batch
        self._shared = False  # `True`: `_users` was above 1 at some time since it was last 0

    @contextlib.contextmanager
    def in_use(self, users: int = 1) -> Iterator[None]:
        """Within the block, count a batch, or a turn that is in no batch, in `_users`."""
        self._use(users)
        try:
            yield
        finally:
            self._use(-users)

    def _use(self, users: int) -> None:
        with self._lock:
            self._users = max(0, self._users + users)  # a forked child begins with 0
            self._shared = self._users > 1 or (self._shared and self._users > 0)

    @contextlib.contextmanager
    def beginning(self, start: Callable[[int], int], place: int | None) -> Iterator[int]:
        """Yield the number of a turn that begins, and count the turn as running within the block.

        A turn of a batch has its `place` in the batch as its number. But if other turns have run beside the
        batch, and have reached this number, the turn has the next free one. For any other turn, `start`
        returns the number: the one that the request sets, or else a number above the argument of `start`.
        """
        with self.in_use(1 if place is None else 0):
            with self._lock:
                above = self._highest if self._shared else 0
                number = start(above) if place is None else max(place, above + 1)
                self._highest = max(self._highest, number)
            with self.running(number):
                yield number

    @contextlib.contextmanager
    def running(self, turn: int) -> Iterator[None]:
        """Count a turn as running within the block."""
        with self._lock:
            self._running[turn] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= Counter([turn])  # `-=` also removes numbers whose count is 0

    def require_ended(self, turn: int) -> None:
        """Raise `NothingToResume` if a turn with this number is running."""
        if self._running[turn] > 0:
            raise NothingToResume(f"Turn {turn} is running in this process. Wait for its end.")


class Wiring(Struct, frozen=True, kw_only=True):
    """The parts that all turns of a runner share."""

    llm: LlmFactory
    endpoint: LlmEndpoint | None  # `None`: the host passed its own factory as `llm`
    servers: Mapping[m.ServerName, ToolServer]
    recorder: Recorder
    process_limits: ProcessLimits
    elicit: Elicit | None
    tool_lock: ToolLock | None
    approval: Approval = Approval()
    under_way: TurnsUnderWay = field(default_factory=TurnsUnderWay)
    runner: object = field(default_factory=object)  # the same in the wirings of all turns of a runner
    presumed: PresumedListings | None = None  # `None`: the first request waits for the servers' tool lists

    def lending(
        self,
        name: m.ConversationId,
        history: History,
        tools: tuple[m.ToolDefinition, ...],
        first: Envelope[m.LlmCommand] | None = None,
    ) -> Wiring:
        """Return a wiring whose LLM actors continue the conversation `name`.

        `first`: a recorded request, which the actors carry out before other commands.
        """
        lender = self.lender
        encoded = EncodedConversation(lender.profile, model=lender.model, history=history)
        encoded.offer(tools)
        llm = lender.lending(LentConversation(name, encoded))
        if first is not None:
            assert isinstance(llm, EndpointActors), "only a model at an endpoint is asked in batches"
            llm = replace(llm, first=first)
        return replace(self, llm=llm)

    @property
    def lender(self) -> LendingFactory:
        """The factory `llm`; raises `ConversationError` if its actors cannot continue a conversation."""
        llm: object = self.llm
        if not isinstance(llm, LendingFactory):
            raise ConversationError(
                "This needs an endpoint, or a factory whose actors can continue a conversation, and the"
                " runner's llm is another factory. Give the runner LlmSettings, or give the factory the"
                " members of grue.hosting.LendingFactory."
            )
        return llm


def connect_fresh(
    wiring: Wiring,
    name: m.ServerName,
    registry: ProcessRegistry,
    on_tool_drift: OnToolDrift,
    sample: Sample | None = None,
    before_import: Callable[[], Awaitable[None]] | None = None,
) -> Connect:
    """Return a factory of new connections to a server. `before_import`: awaited before `mcp` is imported."""
    options = ClientOptions(
        limits=wiring.process_limits,
        abilities=Abilities(sample=sample, elicit=wiring.elicit),
        pins=None if wiring.tool_lock is None else wiring.tool_lock.pins(name),
        on_tool_drift=on_tool_drift,
        on_secret=wiring.recorder.hide,
        before_import=before_import,
        spoken=str if wiring.presumed is None else partial(wiring.presumed.take_spoken, name),
        on_listed=None if wiring.presumed is None else wiring.presumed.on_listed(name),
    )
    return tool_servers.connect_to(name, wiring.servers[name], registry, options)


def wire(
    llm: LlmSettings | Sequence[LlmSettings] | LlmEndpoint | LlmFactory,
    servers: Mapping[str, ToolServer],
    recorder: Recorder,
    process_limits: ProcessLimits | None = None,
    elicit: Elicit | None = None,
    tool_lock: ToolLock | None = None,
) -> Wiring:
    """Make what a runner's turns share, and register the secrets of the settings and of the environment."""
    tool_servers.refuse_other_kinds(elicit=elicit, process_limits=process_limits, tool_lock=tool_lock)
    if callable(llm) and not isinstance(llm, type) and _takes_three(llm):
        endpoint, factory = None, llm
    else:
        endpoint = _endpoint(llm)
        factory = EndpointActors(endpoint)
    usable = tool_servers.usable_servers(servers)
    tool_servers.hide_secrets(recorder, usable.values())
    settings = getattr(llm, "settings", None) if endpoint is None else endpoint.settings
    named_values = getattr(settings, "named_values", dict)
    for name, value in named_values().items():
        recorder.hide(name, value)
    return Wiring(
        llm=factory,
        endpoint=endpoint,
        servers=usable,
        recorder=recorder,
        process_limits=process_limits or ProcessLimits(),
        elicit=elicit,
        tool_lock=tool_lock,
    )


def _takes_three(factory: Callable[..., object]) -> bool:
    try:
        signature(factory).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a function without a signature, written in C
        pass
    return True


def _endpoint(llm: object) -> LlmEndpoint:
    if isinstance(llm, LlmEndpoint):
        return llm
    if isinstance(llm, list | tuple) and llm and all(isinstance(each, LlmSettings) for each in llm):
        flat = [one for each in llm for one in (replace(each, then=()), *each.then)]
        llm = replace(flat[0], then=tuple(flat[1:]))
    if isinstance(llm, LlmSettings):
        tool_servers.check_fields("llm", llm)
        return LlmEndpoint(llm)
    if isinstance(llm, str):
        what, form = "name", f"base_url=..., model={shown(llm)}"
        if "://" in llm:
            what, form = "URL", f"base_url={shown_endpoint(llm)!r}, model=..."
        raise MCPConfigError(f"llm= wants settings, not the {what} alone: llm=LlmSettings({form}).")
    of_server = isinstance(getattr(llm, "settings", None), LlmSettings)  # such as a `ScriptedLlmServer`
    raise MCPConfigError(
        "llm= wants LlmSettings(base_url=..., model=...), an LlmEndpoint, or an LlmFactory, which takes three"
        f" arguments, not {shown(llm)}.{' Pass its `settings`.' if of_server else ''}"
    )


_MOST_TOLD = 100
_told: set[str] = set()


def recorder_that_tells() -> Recorder:
    """Return a recorder that logs problems to the logger `grue`: each once in a process, at most 100."""
    recorder = Recorder()
    kinds = (m.ToolsUnseen, m.ServerNoted, m.ToolDrifted, m.CostUncounted, m.SettingsLeftOut, m.ReplyCut)
    failures = (m.ServerDied, m.McpDisabled, m.RequestCompletion, m.CompletionRetried)
    recorder.watch(dict.fromkeys((*kinds, *failures), partial(_tell, recorder)))
    return recorder


def _tell(recorder: Recorder, body: Struct) -> None:
    match body:
        case m.ReplyCut(retried_with=int()):
            return  # no warning: the reply was cut, but the request is sent again with a larger limit
        case m.ServerNoted(kind=kind) if kind not in ("bad_tool", "bad_elicit"):
            return
        case m.McpDisabled(newly=False):
            return
        case m.RequestCompletion(new=new) if not any(getattr(item, "whole_chars", 0) for item in new):
            return
    from grue.tracing.message_words import told_lines
    from grue.tracing.observers.events import LoggerObserver

    if any(isinstance(each, LoggerObserver) for each in recorder.observers):
        return  # The program's own observer logs the message already.
    for cause, line in told_lines(body):
        if cause not in _told and len(_told) < _MOST_TOLD:
            _told.add(cause)
            text = printable(recorder.redacted_text(line))
            logging.getLogger("grue").warning("grue: %s", text)


_CLOSED: WeakKeyDictionary[Recorder, tuple[Observer, ...]] = WeakKeyDictionary()
"""The observers of closed traces, by recorder. They stay in the recorder and refuse its messages, so that no
turn can run."""


class OwnTrace:
    """A trace, written until `close`: a file if `path` ends in `.jsonl`, otherwise a run folder in `path`."""

    def __init__(self, path: str | os.PathLike[str], recorder: Recorder) -> None:
        target = as_path(path, "trace=")
        self._recorder = recorder
        # The host may use the recorder of a closed runner for another runner.
        recorder.remove(_CLOSED.pop(recorder, ()))
        before = len(recorder.observers)
        self._close: Callable[[], None]
        if target.suffix == ".jsonl":
            self._close = _write_file(target, recorder)
        else:
            from grue.tracing.observers.run_folder import RunFolder, new_run_path  # its imports take time

            target = new_run_path(target)
            self._close = RunFolder(target, recorder, episode_id=target.name).close
        self.path = target.absolute()
        self._observers = recorder.observers[before:]

    def close(self) -> None:
        """Write what is queued, and close the files. Raises `TraceError` if the trace is incomplete."""
        _CLOSED[self._recorder] = (*_CLOSED.get(self._recorder, ()), *self._observers)
        try:
            self._recorder.settle()
        finally:
            self._close()


def _write_file(path: Path, recorder: Recorder) -> Callable[[], None]:
    with contextlib.suppress(OSError):  # the file is new, or the writer reports why it cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.stat().st_size:
            raise TraceError(
                f"The trace file {path} exists already: choose another name, or remove it. With a folder,"
                f' trace="{path.with_suffix("")}", each run of the program has files of its own.'
            )
    # A file `trace.jsonl` is most likely in a run folder, and the folder's name is the episode's name.
    episode = path.absolute().parent.name if path.name == TRACE_FILE else path.stem
    writer = TraceWriter(path, episode=well_formed(episode), options=TraceOptions(version=__version__))
    for name, value in secrets_in(os.environ).items():
        recorder.hide(name, value)
    recorder.check = refuse_unreadable
    recorder.add(writer)
    return writer.close
