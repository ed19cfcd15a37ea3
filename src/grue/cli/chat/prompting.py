"""The prompt at a terminal, with multi-line editing, history and completion. Uses prompt_toolkit."""

import contextlib
import os
import re
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from grue.cli.chat.lines import COMMANDS
from grue.engine.approval import forget_typed
from grue.runtime.files import open_regular, write_whole
from grue.runtime.safe_text import printable
from grue.runtime.secrets.redaction import Redaction

_WORD = re.compile(r"[\w.:/-]+$")
_SHORTEST = 2
_LOCAL_MODES = 3  # index of the terminal's local modes in the list that `tcgetattr` returns
_LOCAL = termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN
_USABLE = {0: termios.ICRNL, 1: termios.OPOST, _LOCAL_MODES: _LOCAL}  # modes that have to be on, by index
_MAX_HISTORY_BYTES = 2**20
_COLOURS = {"prompt": "ansigreen bold", "continuation": "ansibrightblack"}
_STYLE = Style.from_dict({**_COLOURS, "bottom-toolbar": "noreverse fg:ansibrightblack"})


@contextlib.contextmanager
def typing_ahead_hidden() -> Iterator[None]:
    """Hide what the user types during a turn, until the next prompt shows it.

    The terminal's echo would move the cursor, and prompt_toolkit would draw its prompt over other text.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    # A chat that was killed may have left the terminal in raw mode or without echo: restore a usable mode.
    for modes, wanted in _USABLE.items():
        before[modes] |= wanted
    termios.tcsetattr(descriptor, termios.TCSANOW, before)
    hidden = termios.tcgetattr(descriptor)
    hidden[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class PromptReader:
    """Reads from a terminal. `tools` returns names for completion, `status` the row below the prompt."""

    asks = True

    def __init__(
        self, tools: Callable[[], Sequence[str]], status: Callable[[], str], redaction: Redaction
    ) -> None:
        depth = ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", "> ")],
            multiline=True,
            history=_history(redaction),
            completer=ChatCompleter(tools),
            complete_while_typing=False,
            key_bindings=_keys(),
            prompt_continuation=lambda width, *_: [("class:continuation", "· ".rjust(width))],
            bottom_toolbar=lambda: printable(status()),
            style=_STYLE,
            color_depth=depth,
            enable_suspend=True,
        )
        self._short: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), style=_STYLE, color_depth=depth
        )

    def read(self) -> str | None:
        """Return the next input; `None` after Ctrl-D."""
        try:
            return self._session.prompt()
        except EOFError:
            return None

    def forget(self) -> None:
        """Discard what was typed before now."""
        forget_typed(sys.stdin)
        clear_typeahead(self._short.input)

    def answer(self, question: str, default: str = "") -> str | None:
        """Ask for a line, with `default` as the text to edit. Return the line; `None` after Ctrl-D."""
        try:
            return self._short.prompt([("class:prompt", question)], default=default).strip()
        except EOFError:
            return None


class ChatCompleter(Completer):
    """Completes slash commands, the path of `/save`, and the names that `tools` returns."""

    def __init__(self, tools: Callable[[], Sequence[str]]) -> None:
        self._tools = tools
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        text = document.text_before_cursor
        command, space, rest = text.partition(" ")
        if text.startswith("/") and "\n" not in text:
            if not space:
                yield from _matching(COMMANDS, command)
            elif command == "/save":
                yield from self._paths.get_completions(Document(rest), complete_event)
            elif command == "/tools":
                yield from _matching(self._tools(), rest)
            return
        word = _WORD.search(text)
        if word is not None and len(word[0]) >= _SHORTEST:
            yield from _matching(self._tools(), word[0])


def _matching(names: Iterable[str], begun: str) -> Iterable[Completion]:
    for name in names:
        # People also type only the beginning of `tool` when they mean `server.tool`.
        if name.startswith(begun) or (begun and f".{begun}" in name):
            yield Completion(printable(name), start_position=-len(begun))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    # Ctrl-J must not begin a new line: Enter pressed during a turn is read as Ctrl-J by the next prompt.
    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _PrivateHistory(FileHistory):
    """A history file in which secrets are redacted. If writing fails, an input is kept in memory only."""

    def __init__(self, path: Path, redaction: Redaction) -> None:
        super().__init__(path)
        self._redaction = redaction

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(self._redaction.redact_text(string))


def _history(redaction: Redaction) -> History:
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "grue"
        path = folder / "chat_history"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with open_regular(path) as file:
            if file.seek(0, os.SEEK_END) > _MAX_HISTORY_BYTES:
                _shorten(path)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
        return InMemoryHistory()
    return _PrivateHistory(path, redaction)


def _shorten(path: Path) -> None:
    kept = path.read_bytes()[-_MAX_HISTORY_BYTES // 2 :]
    # Keep whole inputs only: each begins with an empty line and a comment.
    write_whole(path.resolve(), kept[max(0, kept.find(b"\n\n#")) :])
