"""`ShellTool`: a tool server whose one tool runs commands on this machine. A host has to configure it.

An allow-list limits what a model can start, not what a started program does; a box (`sandbox`) limits that.
When a command has ended, or the host has died, the command's processes are killed. Those that have left its
process group are found only on Linux, and not always (`descendants.py`).
"""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import anyio
import msgspec
from msgspec import Meta, Struct, field

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import ByName, check_settings, repr_by_fields, shown
from grue.policies import ToolAnnotations
from grue.protocol.tools import results as tool_results
from grue.runtime.actor import Note
from grue.runtime.processes.child_process import Capture, Command
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry, SpawnError
from grue.runtime.safe_text import plain_text
from grue.sandbox.box import Sandbox, sandbox_of
from grue.tool_sessions.function_tools import FunctionConnection, FunctionTools, ToolContext, tool
from grue.tool_sessions.host_tools import BeforeCalls, HostTools
from grue.tool_sessions.redaction import Redactor

_SHELL = "/bin/sh"
_NUL_WITHIN = 8192
_DAMAGED_SHARE = 0.1  # if a larger share of an output is not UTF-8, the output counts as binary
_SHARE_TO_END = 0.1
_TO_READ_S = 0.5
"""A command is ended before its call's time is over, so that its output can still be read. The time left for
that is a tenth of the call's time, or `term_grace_s` + 0.5 s, whichever is shorter."""

_CUT_END = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_CUT_BEGINNING = re.compile(rb"\A[\x80-\xbf]{1,3}")  # both match what a cut has left of a character
AllowedCommands: TypeAlias = Sequence[str | Sequence[str]] | Literal["any"]
"""The programs that may be run, each alone or with its first arguments; or `any`."""


class ShellTool(Struct, HostTools, metaclass=ByName, frozen=True, kw_only=True, dict=True):
    """A tool server with the tool `run`, which runs a command and returns the output and exit status.

    ```python
    servers={"sh": ShellTool(folder="repo", commands=["ls", "rg", ["git", "diff"], ["git", "status"]])}
    ```

    The model passes a list of arguments, which no shell reads. With `shell=True` it passes one string, which
    `/bin/sh` reads. Of `env`, the `repr` of a `ShellTool` shows only the names.

    Attributes:
        folder: Working directory of every command.
        commands: The programs that may be run: a name on the PATH, or a path; a relative one begins at
            `folder`. An entry that is a list has to match the first arguments too. `any` allows everything.
            So does a program that starts others, such as `env`, `find`, `xargs` or an interpreter.
        shell: Whether the model passes a string for `/bin/sh`, which runs anything; needs `commands="any"`.
        inherit: Names of the host's environment variables that a command gets. No others are inherited.
        env: Variables that are added to the inherited ones.
        timeout_s: Time limit of one command in seconds. A command is also ended a little before the turn's
            limit of a call, so that the model still gets its output.
        max_output_bytes: How much of each output stream the model gets: its beginning and its end.
        max_written_bytes: A command that writes more to both output streams together is ended.
        limits: How long a command may take to end after SIGTERM, before it gets SIGKILL.
        sandbox: What a command may read, write, start and connect to: a `Sandbox`, or a preset's name. The
            preset `files` gives access to `folder`. A path in the model's arguments does not widen the
            sandbox. `None`: no sandbox; a command may do whatever the host may do.

    Raises:
        MCPConfigError: For example, the folder does not exist, or `shell` is set with an allow-list.
    """

    starts_processes: ClassVar[bool] = True

    folder: str | os.PathLike[str]
    commands: AllowedCommands
    shell: bool = False
    inherit: Sequence[str] = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "USER")
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    max_output_bytes: int = 30_000
    max_written_bytes: int = 16 * 1024 * 1024
    limits: ProcessLimits = ProcessLimits(term_grace_s=1.0)
    sandbox: Sandbox | None = None

    def __post_init__(self) -> None:
        check_settings(
            self,
            only=("shell", "env", "timeout_s", "max_output_bytes", "max_written_bytes", "limits"),
            above_0=("timeout_s",),
        )
        if not isinstance(self.folder, str | os.PathLike):
            raise MCPConfigError("ShellTool: folder= wants the path of a folder.")
        for name, what in (("commands", "programs"), ("inherit", "names of variables")):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) and (name, value) != ("commands", "any"):
                raise MCPConfigError(f"ShellTool: {name} is a list of {what}, not {shown(value)}.")
            entries = [
                each if isinstance(each, list | tuple) and name == "commands" else (each,) for each in value
            ]
            if not all(isinstance(word, str) for entry in entries for word in entry):
                raise MCPConfigError(f"ShellTool: {name} has an entry that is not a text.")
        try:
            msgspec.structs.force_setattr(self, "sandbox", sandbox_of(self.sandbox))
        except ValueError as error:
            raise MCPConfigError(f"ShellTool: sandbox {error}.") from None
        if not os.path.isdir(self.place):  # noqa: PTH112 - never raises
            named = os.fspath(self.folder)
            raise MCPConfigError(
                f"ShellTool: the folder {named!r} does not exist, or this user may not enter it."
            )
        if self.shell and self.commands != "any":
            raise MCPConfigError(
                "ShellTool: a string for the shell can name any program, so an allow-list cannot hold. Use"
                ' shell=False, or allow everything with commands="any".'
            )
        self.allowed()

    @cached_property
    def place(self) -> str:
        """The absolute path of `folder`, as it was when the object was made."""
        with contextlib.suppress(OSError):  # the working directory was deleted
            return str(Path(self.folder).absolute())
        return os.fspath(self.folder)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        hidden = dict.fromkeys(self.env, "[redacted]")
        return [("folder", self.folder), ("commands", self.commands), ("shell", self.shell), ("env", hidden)]

    __repr__ = repr_by_fields

    def environment(self) -> dict[str, str]:
        """Return a command's whole environment."""
        return {**{name: os.environ[name] for name in self.inherit if name in os.environ}, **self.env}

    def named_values(self) -> Mapping[str, str]:
        """Return the configured values that may be secret, by name, for redaction."""
        return self.env

    def allowed(self) -> "tuple[_Allowed, ...] | None":
        """Return the allowed commands with their programs' paths; `None`: all. Raises `MCPConfigError`."""
        if self.commands == "any":
            return None
        entries = [(entry,) if isinstance(entry, str) else tuple(entry) for entry in self.commands]
        return tuple(self._allowed(entry) for entry in entries)

    def connect(
        self,
        server: m.ServerName,
        registry: ProcessRegistry,
        before_calls: BeforeCalls = None,
        note: Note | None = None,
    ) -> FunctionConnection:
        """Make the connection for one session, as `HostTools` says."""
        tools = FunctionTools([_Commands(self, registry).tool()])
        connection = tools.connect(server, registry, before_calls, note)
        if self.sandbox is not None:
            # imported here, because most programs have no boxes
            from grue.sandbox.launch import is_enforced, reach

            redactor = Redactor(os.environ, self.named_values())
            box = redactor.text(plain_text(reach(self.sandbox)))
            connection.runs_in(box, enforced=is_enforced(self.sandbox))
        return connection

    def _allowed(self, entry: tuple[str, ...]) -> "_Allowed":
        if not entry:
            raise MCPConfigError("ShellTool: an entry of commands is empty.")
        path = self.environment().get("PATH", os.defpath)
        found = shutil.which(entry[0] if "/" not in entry[0] else str(Path(self.place) / entry[0]), path=path)
        if found is None:
            raise MCPConfigError(
                f"ShellTool: the program {entry[0]!r} was not found. Install it, or leave it out."
            )
        return _Allowed(entry, str(Path(found).absolute()))


class _Allowed(Struct, frozen=True):
    """An entry of the allow-list in one session. Later changes of PATH do not affect `program`."""

    words: tuple[str, ...]
    program: str


class _Program(Struct, frozen=True):
    command: str
    args: Sequence[str]
    cwd: str
    variables: Mapping[str, str]
    sandbox: Sandbox | None

    def environment(self) -> dict[str, str]:
        return dict(self.variables)


class _Commands:
    def __init__(self, spec: ShellTool, registry: ProcessRegistry) -> None:
        self._spec = spec
        self._registry = registry
        self._allowed = spec.allowed()

    def tool(self) -> Any:
        spec = self._spec
        what = "Run a command line in /bin/sh" if spec.shell else "Run a program without a shell"
        description = (
            f"{what}, in {os.fspath(spec.folder)}, for at most {spec.timeout_s:g} s; return its output and"
            f" exit status. Allowed: {self._allowed_text()}."
        )
        marks = tool(name="run", description=description, annotations=_ANNOTATIONS)

        async def run(
            argv: Annotated[list[str], Meta(min_length=1, description="The program and its arguments.")],
            stdin: Annotated[str, Meta(description="Text for its standard input.")] = "",
            *,
            context: ToolContext,
        ) -> m.ToolCallResult:
            found = self._program_of(argv)
            if found is None:
                return tool_results.failure(
                    f"{shlex.join(argv)} is not allowed. Allowed: {self._allowed_text()}"
                )
            program, own_words = found
            return await self._run(program, tuple(argv[1:]), own_words, stdin, context)

        async def run_line(
            command: Annotated[str, Meta(description="A command line for /bin/sh.")],
            stdin: Annotated[str, Meta(description="Text for its standard input.")] = "",
            *,
            context: ToolContext,
        ) -> m.ToolCallResult:
            return await self._run(_SHELL, ("-c", command), 1, stdin, context)

        return marks(run_line if spec.shell else run)

    def _allowed_text(self) -> str:
        if self._allowed is None:
            return "every program"
        return ", ".join(shlex.join(each.words) for each in self._allowed) or "none"

    def _program_of(self, argv: Sequence[str]) -> tuple[str, int] | None:
        """Return the program, and how many words of `argv` the user chose; `None`: it is not allowed."""
        if self._allowed is None:
            # A bare name counts as the user's choice: it is on the user's PATH. A path is the model's choice.
            return argv[0], int("/" not in argv[0])
        found = (each for each in self._allowed if tuple(argv[: len(each.words)]) == each.words)
        return next(((each.program, len(each.words)) for each in found), None)

    async def _run(
        self, program: str, args: tuple[str, ...], own_words: int, stdin: str, context: ToolContext
    ) -> m.ToolCallResult:
        spec = self._spec
        left_s = context.remaining_s
        left_s -= min(_SHARE_TO_END * left_s, spec.limits.term_grace_s + _TO_READ_S)
        limit_s = min(spec.timeout_s, round(left_s, 2))
        command = Command(
            _Program(program, args, spec.place, spec.environment(), spec.sandbox),
            self._registry,
            spec.limits,
            own_words=own_words,
            max_output_bytes=spec.max_output_bytes,
            max_written_bytes=spec.max_written_bytes,
        )
        finished: bool | None = None
        try:
            async with command:
                # Leaving the block of `command` has time limits of its own (`spec.limits`).
                with anyio.move_on_after(limit_s):
                    finished = await command.finish(stdin.encode("utf-8", "replace"))
        except SpawnError as error:
            return tool_results.failure(f"It could not be started: {error}")
        content = _content(command)
        boxed = command.refusals(str(content["stderr"]))
        if boxed:
            content["box"] = list(boxed)
        if finished:
            return tool_results.success(content)
        if finished is None:
            return tool_results.failure(f"It was ended after {limit_s:g} s, its time limit.", content)
        most = spec.max_written_bytes
        return tool_results.failure(f"It was ended because it wrote more than {most} bytes.", content)


_ANNOTATIONS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=True)


def _content(command: Command) -> m.JsonObject:
    ended = command.exited
    content: m.JsonObject = {"stdout": _text(command.stdout), "stderr": _text(command.stderr)}
    if ended is not None and ended.signal:
        return {"signal": ended.signal, **content}
    return {"exit_status": ended.status if ended else None, **content}


def _text(capture: Capture) -> str:
    """Return captured output as text, with a line where bytes were left out; of binary output, the size."""
    parts = capture.parts
    if capture.dropped:
        # A character that is cut at the gap is left out as a whole.
        parts = (_CUT_END.sub(b"", parts[0]), _CUT_BEGINNING.sub(b"", parts[1]))
    text = b"".join(parts).decode("utf-8", "surrogateescape")
    damaged = sum("\udc80" <= each <= "\udcff" for each in text)
    if b"\0" in parts[0][:_NUL_WITHIN] or damaged > _DAMAGED_SHARE * max(1, len(text)):
        return f"[{capture.size} bytes of binary output]"
    dropped = capture.size - sum(map(len, parts))
    return f"\n[... {dropped} bytes were left out here ...]\n".join(
        part.decode("utf-8", "replace") for part in parts
    )
