"""The options of `grue chat`, and which of them a run records so that it can be resumed."""

from pathlib import Path

from msgspec import Struct, structs

from grue import messages as m
from grue.cli.chat.facts import ChatPast
from grue.cli.recorded_options import recorded_options, run_folder, started_options

INSTRUCTIONS = "You are a helpful assistant at a terminal. Answer briefly, in plain text. Use the tools."


class ChatOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue chat`; see its help.

    Attributes:
        mcp: With tools.
        instructions: The system text.
        ask: Ask before every tool call that the configured policy would make.
        resume: The run folder to resume, with the options of its first run.
        started_in: The folder in which it was started; `None`: the working directory.
        quiet: Print only the answers.
        learn: The server that is watched; the box that it needs is printed at the end.
    """

    offline: bool = False
    model: str | None = None
    base_url: str | None = None
    mcp_config: Path | None = None
    mcp: bool = True
    instructions: str = INSTRUCTIONS
    ask: bool = False
    run_dir: Path | None = None
    turn_timeout_s: float | None = None
    resume: Path | None = None
    started_in: Path | None = None
    quiet: bool = False
    learn: str | None = None


_RECORDED = ("offline", "model", "base_url", "mcp_config", "mcp", "instructions", "ask", "turn_timeout_s")


def recorded(options: ChatOptions) -> m.JsonObject:
    """Return the options to record, as JSON, with the working directory, where the project's settings are."""
    return recorded_options(options, _RECORDED)


def as_started(options: ChatOptions, past: ChatPast) -> ChatOptions:
    """Return the options of a chat's first run, with the time limit and the output of this command.

    If the folder in which it was started no longer exists, the working directory is used.

    Raises:
        MCPConfigError: They were recorded by another version of `grue chat`.
    """
    said = f"{options.resume} does not hold valid options of `grue chat`"
    started = started_options(past.started.settings, ChatOptions, said)
    folder = started.started_in
    return structs.replace(
        started,
        model=past.model or started.model,
        resume=None if options.resume is None else run_folder(options.resume),
        started_in=folder if folder is not None and folder.is_dir() else None,
        turn_timeout_s=options.turn_timeout_s or started.turn_timeout_s,
        quiet=options.quiet,
    )
