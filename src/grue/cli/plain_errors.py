"""Report grue's and the system's errors as sentences instead of tracebacks, and exit with 1, 2 or 130."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from grue.cli.saying import GRUE, for_this_python, say, shown
from grue.errors import GameError, MCPConfigError, MCPError
from grue.runtime.files import os_cause
from grue.runtime.safe_text import fault_text

FAILED, USAGE, INTERRUPTED = 1, 2, 130

# The class `UsageError` of click, taken from the copy of click that typer uses.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# Words that people type in place of a command, with the command that they mean.
_MEANT = {
    **dict.fromkeys(("view", "open"), "trace html --open"),
    **{name: f"trace {name}" for name in ("show", "stats", "replay", "diagram", "serve", "to-test")},
    "diff": "trace diff A B",
    "query": "trace query SQL",
    **dict.fromkeys(("list", "ls"), "runs"),
    **dict.fromkeys(("models", "check", "test"), "doctor"),
    **dict.fromkeys(("new", "create"), "init"),
    "install": "add SOURCE",
    **dict.fromkeys(("rm", "uninstall"), "remove SERVER"),
    "ask": "chat",
}


class Commands(TyperGroup):
    """A group of commands that reports errors as sentences, with control characters and secrets replaced."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. If the name is unknown, the error may suggest what `_MEANT` has for it."""
        try:
            return super().resolve_command(ctx, args)
        except _UsageError as error:
            meant = _MEANT.get(args[0], "")
            if meant and (ctx.parent is None or meant.startswith(f"{ctx.info_name} ")):
                vars(error)["message"] = f"No such command '{args[0]}'. Write: {GRUE} {meant}"
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command, and let `--help` show its parameters without Python's types."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group itself, such as `--version`."""
        return _without_types(super().get_params(ctx))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the group's arguments. Usage errors are printed without control characters and secrets."""
        with _plain_usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, report its errors, and exit with 1 if it returns `False`."""
        with _plain_errors(), _plain_usage_errors():
            if super().invoke(ctx) is False:
                raise typer.Exit(FAILED)


def _without_types(params: list[Any]) -> list[Any]:
    # Typer would show `<bool>` for a flag and `<list[Path]>` for an argument.
    for each in params:
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None  # noqa: ARG005 - typer's name
        elif getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return params


@contextlib.contextmanager
def _plain_usage_errors() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        message = fault_text(str(vars(error).get("message", "")))
        vars(error)["message"] = shown(message)
        raise


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except MCPError as error:
        _complain(str(error))
        raise typer.Exit(USAGE if isinstance(error, MCPConfigError | GameError) else FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except typer.Abort as error:
        # A question of typer raises `Abort` after Ctrl-C, and also after Ctrl-D.
        if isinstance(error.__context__, KeyboardInterrupt):
            say(err=True)
            raise typer.Exit(INTERRUPTED) from error
        raise


def report_os_error(error: OSError) -> NoReturn:
    """Report an error that no command has handled, and exit with 1. A closed pipe is not reported."""
    if not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename is not None else ""
        _complain(f"{where}{os_cause(error)}.")
    # Send the rest of the output to /dev/null, so that Python's flush at exit does not fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(FAILED)


def _complain(message: str) -> None:
    say(f"grue: {for_this_python(message)}", err=True)
    if os.environ.get("GRUE_DEBUG"):
        say(traceback.format_exc(), err=True)
