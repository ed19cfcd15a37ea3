"""The run folder of an episode: its trace, its two logs and what the host adds, such as the result.

`events.jsonl` is for programs, one JSON object a line; `episode.log` is for people.
"""

import json
import os
import re
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from grue.errors import TraceError
from grue.runtime.files import LineFile, as_path, cut_half_line, os_errors_as, write_whole
from grue.runtime.loops.closing import Closing
from grue.runtime.safe_text import printable
from grue.runtime.secrets.secret_forms import secrets_in
from grue.runtime.trace.file import TraceOptions, TraceWriter, refuse_unreadable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.runtime.version import __version__
from grue.tracing.facts import EpisodeResumed, EpisodeStarted
from grue.tracing.observers.events import Event, EventFeed

RESULT_FILE = "result.json"


class RunFolder(Closing):
    """The files of one episode, written while it runs, each readable only by its owner.

    Messages from and to `host` are flushed before a host's call of `record`, or its turn, returns, so that a
    host can record a decision and then act on it. But on a slow disk, the call waits for the trace at most
    `TraceOptions.flush_within_s`; for the logs it waits without a limit. Placeholders replace the
    environment's secrets (`secrets_in`) in the trace and the logs. An older `result.json` is removed when the
    host records that the episode starts or is resumed.

    Args:
        path: The run folder. Without `resume`, it is made, with its parents, if it is missing.
        recorder: Its messages are written from now on.
        episode_id: The episode's id.
        resume: `True`: continue the files of an interrupted episode. The recorder must not have recorded
            anything yet; its message numbers and its time continue those in the trace.
        options: How the trace is written; its `version` is replaced by grue's. `None`: `TraceOptions()`.

    Raises:
        MCPConfigError: `path` cannot be a path.
        TraceError: The folder or a file in it cannot be written, or another process or runner writes the
            trace. Without `resume`: there is a trace already. With `resume`: there is no trace of this
            episode, or it is damaged or has another format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        recorder: Recorder,
        *,
        episode_id: str,
        resume: bool = False,
        options: TraceOptions | None = None,
    ) -> None:
        self.path = path = as_path(path, "RunFolder")
        self._recorder = recorder
        if not resume:
            with os_errors_as(TraceError, f"create the run folder {path}"):
                try:
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                except FileExistsError as error:
                    raise TraceError(f"Cannot create the run folder {path}: it is a file.") from error
        options = replace(options or TraceOptions(), version=__version__)
        with ExitStack() as files:
            trace = path / "trace.jsonl"
            self._trace = TraceWriter(trace, episode=episode_id, options=options, resume=resume)
            files.callback(self._trace.close)
            if resume:
                cut_half_line(path / "events.jsonl", "event log")
                cut_half_line(path / "episode.log", "episode log")
                recorder.resume(after_seq=self._trace.last_seq, after_t=self._trace.last_t)
            events = JsonLog(path / "events.jsonl", episode_id=episode_id)
            files.callback(events.close)
            log = EpisodeLog(path / "episode.log", episode_id=episode_id)
            files.callback(log.close)
            self._files = files.pop_all()
        for name, value in secrets_in(os.environ).items():
            recorder.hide(name, value)
        self._place = self._trace.place
        self._outside = options.outside
        recorder.check = refuse_unreadable
        for observer in (self._remove_old_result, self._trace, events, log, self._require_place):
            recorder.add(observer)

    def _remove_old_result(self, envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, EpisodeStarted | EpisodeResumed):
            with os_errors_as(TraceError, f"remove {self.path / RESULT_FILE}"):
                self._place.with_name(RESULT_FILE).unlink(missing_ok=True)

    def _require_place(self, envelope: Envelope[Any], _line: bytes) -> None:
        """At a message from or to the host, raise `TraceError` if the trace is not at its path any more."""
        if self._outside in (envelope.sender, envelope.receiver) and not os.path.exists(self._place):  # noqa: PTH110 - never raises
            raise TraceError(f"The run folder {self.path} was moved or deleted while it was being written.")

    def flush(self) -> bool:
        """Flush everything recorded so far to the operating system; return `False` if that takes too long.

        Raises:
            TraceError: The disk is full or failed, or the folder is closed. Any other exception of an
                observer is raised, too.
        """
        self._recorder.settle()
        return self._trace.flush()

    def write_result(self, result: object) -> None:
        """Write `result.json` atomically, or raise `TraceError`.

        Placeholders replace secrets in texts and in numbers. If the result's type does not accept the text of
        a placeholder in place of a number, no number in the whole result is replaced.
        """
        target = self.path / RESULT_FILE
        _, encoded = self._recorder.encoded(result)
        shown = self._recorder.redacted(encoded, numbers=True)
        try:
            msgspec.json.decode(shown, type=type(result))
        except (msgspec.ValidationError, TypeError):  # a field needs the number, or msgspec cannot decode it
            shown = self._recorder.redacted(encoded)
        text = msgspec.json.format(shown, indent=2)
        with os_errors_as(TraceError, f"write {target}"):
            write_whole(self._place.with_name(RESULT_FILE), text + b"\n", draft=f"{RESULT_FILE}.part")

    def keep(self, name: str, content: bytes) -> str:
        """Write a file of the host's own into the folder, without secrets, and return its name.

        Args:
            name: Path of the file in the folder, such as `artifacts/page.json`. In its last part, a `_`
                replaces each run of characters that are not ASCII letters, digits, `.`, `_` or `-`.
            content: JSON if `name` ends in `.json`, text in UTF-8 otherwise.

        Raises:
            TraceError: The file cannot be written, or `name` is not below the folder.
        """
        if name.startswith("/") or ".." in name.split("/"):
            raise TraceError(f"{name!r} is not below the run folder: write a path like artifacts/page.json.")
        above, _, last = name.rpartition("/")
        last = re.sub(r"[^A-Za-z0-9._-]+", "_", last)
        target = self._place.parent / above / last
        hidden = (
            self._recorder.redacted(content, numbers=True)
            if last.endswith(".json")
            else self._recorder.redacted_text(content.decode("utf-8", "replace")).encode()
        )
        with os_errors_as(TraceError, f"write {target}"):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(target, hidden)
        return f"{above}/{last}".lstrip("/")

    def discard(self) -> None:
        """Close and remove the trace and the logs, and remove the folder if nothing else is in it."""
        self.close()
        for name in ("trace.jsonl", "events.jsonl", "episode.log"):
            self._place.with_name(name).unlink(missing_ok=True)
        with suppress(OSError):
            self._place.parent.rmdir()

    def close(self) -> None:
        """Close the files. A second call does nothing.

        Raises:
            TraceError: The trace could not be written completely, and no earlier call has raised this. Any
                other exception of an observer is raised, too.
        """
        with self._files:
            self._recorder.settle()


def new_run_path(parent: Path, suffix: str = "") -> Path:
    """Create a run folder, named by the time (UTC), the process and `suffix`; may raise `TraceError`."""
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    for number in count(1):
        path = parent / (f"{name}{suffix}" if number == 1 else f"{name}-{number}{suffix}")
        # The folder may exist: in containers that share `parent`, two processes may have the same id.
        with os_errors_as(TraceError, f"create the run folder {path}"), suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
            return path
    raise AssertionError("count() does not end")


class _Log(ABC):
    """Appends each message's log events to a file, at once and without a buffer."""

    what: ClassVar[str]

    def __init__(self, path: Path, *, episode_id: str = "") -> None:
        self._feed = EventFeed(episode_id)
        self._file = LineFile(path, self.what)

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        for event in self._feed.feed(envelope):
            for text in self._lines(event):
                self._file.write(text.encode())

    def close(self) -> None:
        self._file.close()

    @abstractmethod
    def _lines(self, event: Event) -> list[str]:
        """Return the lines for an event, without newlines."""


class JsonLog(_Log):
    """Writes each event as a line of JSON, with the time in ISO 8601 (UTC)."""

    what = "event log"

    def _lines(self, event: Event) -> list[str]:
        time = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
        labels = event.labels()
        entry = {
            "event_type": labels.pop("event_type"),
            "level": event.level,
            "message": event.message,
            "time": time.replace("+00:00", "Z"),
            **labels,
        }
        return [msgspec.json.encode(entry).decode()]


ARGUMENTS_LIMIT = 2000  # most characters of a call's arguments in a line; the trace has all of them


class EpisodeLog(_Log):
    """Writes an episode's log for human readers."""

    what = "episode log"
    _skipping: tuple[int, object] | None = None

    def _lines(self, event: Event) -> list[str]:
        match event.event_type:
            case "mcp_tool_skipped" if event.fields["after"]:
                return self._skipped(event)
            case "mcp_tool_call":
                arguments = json.dumps(event.fields["arguments"], ensure_ascii=False)
                return [
                    _line("INFO", event, f"Agent calling tool {event.fields['tool_name']}"),
                    _line("DEBUG", event, f"Tool arguments: {printable(arguments, ARGUMENTS_LIMIT)}"),
                ]
            case "mcp_tool_result":
                took_ms: Any = event.fields["duration_ms"]
                return [_line("INFO", event, f"Tool result received ({took_ms / 1000:.1f}s)")]
            case "mcp_session_complete":
                iterations, calls = event.fields["iterations"], event.fields["tool_calls_count"]
                counts = f"({iterations} iterations, {calls} tool calls)"
                return [_line("INFO", event, f"MCP session complete {counts}")]
            case "mcp_disabled_fallback":
                return [_line("INFO", event, "Continuing without MCP tools")]
            case "mcp_iteration_start" | "mcp_no_content":
                return []
            case _:
                return [_line(event.level.upper(), event, event.message)]

    def _skipped(self, event: Event) -> list[str]:
        """Return a line, but none if the call skipped before was of the same iteration."""
        batch = (event.turn, event.fields["iteration"])
        if batch == self._skipping:
            return []
        self._skipping = batch
        text = f"Skipping remaining tools in batch after {event.fields['after']}"
        return [f"[INFO] Turn {event.turn}: {text}"]


def _line(level: str, event: Event, text: str) -> str:
    iteration = event.fields.get("iteration")
    where = f"Turn {event.turn}" if iteration is None else f"Turn {event.turn} Iteration {iteration}"
    return f"[{level}] {where}: {printable(text)}"
