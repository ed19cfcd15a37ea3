"""The output of a chat: at a terminal each word as it arrives and a status row, in a pipe whole answers."""

import sys
import threading
import time
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.cli.chat import lines
from grue.cli.live_story import Line
from grue.cli.live_terminal import Terminal
from grue.cli.saying import say
from grue.hosts.agent_loop import LoopEvent, ToolEnded, ToolStarted, Words
from grue.runtime.loops.closing import Closing
from grue.runtime.safe_text import printable, written_out
from grue.runtime.secrets.redaction import Redaction, TextPieces
from grue.tracing.columns import cut
from grue.tracing.message_words import DIM

_TICK_S = 0.1
_WIDEST = 100
_NARROWEST = 20


class Noticed(Struct, frozen=True, kw_only=True):
    """An event of a turn: a problem that does not end the turn. Its text is untrusted."""

    text: str


def _line(event: ToolStarted | ToolEnded | Noticed) -> Line:
    match event:
        case ToolStarted():
            return lines.started(event)
        case ToolEnded():
            return lines.ended(event)
        case Noticed(text=text):
            return lines.notice(text)


class TerminalScreen(Closing):
    """Prints to a terminal, and redacts secrets. Use it as a context manager."""

    def __init__(self, output: Terminal, redaction: Redaction) -> None:
        self._output = output
        self._redaction = redaction
        self._row = _WaitingRow(output)
        self._words = TextPieces(redaction)
        self._said = ""
        self._in_line = False

    def begin(self, what: str = "thinking") -> None:
        """Show in the status row what the chat waits for."""
        self._forget_words()
        self._row.show(what)

    def on_event(self, event: LoopEvent | Noticed) -> None:
        """Print an event of the turn, unless it is a piece of the model's reasoning."""
        match event:
            case Words(restart=True):
                if self._said:
                    self._end_words()
                    self._print(Line("  (the request is sent again)", DIM))
            case Words(text=text, reasoning=False):
                self._said += text
                self._write(self._redaction.redact_text(self._words.feed(text)))
            case ToolStarted() | ToolEnded() | Noticed():
                self._end_words()
                self._print(_line(event))
                self._row.show(printable(event.name, 60) if isinstance(event, ToolStarted) else "thinking")

    def end(self, answer: str | None) -> None:
        """End the output of a turn: print the answer, unless it was streamed or is `None`."""
        if answer is not None and self._said.strip() != answer.strip():
            self._end_words()
            self._write(self._redaction.redact_text(answer))
        self._end_words()
        self._row.hide()

    def show(self, shown: Iterable[Line]) -> None:
        """Print the output of a command, or a question."""
        self._end_words()
        self._row.hide()
        for line in shown:
            self._print(line)

    def tell(self, line: Line) -> None:
        """Print a message to the user."""
        self.show([line])

    def close(self) -> None:
        """Erase the status row and end its thread."""
        self._row.close()

    def _write(self, text: str) -> None:
        if text:
            self._row.hide()
            self._output.write(written_out(text))
            self._in_line = not text.endswith("\n")

    def _print(self, line: Line) -> None:
        self._row.hide()
        self._end_line()
        redacted = self._redaction.redact_text
        line = replace(line, lead=redacted(line.lead), text=redacted(line.text))
        width = max(_NARROWEST, min(self._output.size().columns, _WIDEST))
        self._output.write("".join(f"{row}\n" for row in line.rows(width, colour=self._output.colour)))

    def _end_words(self) -> None:
        self._write(self._redaction.redact_text(self._words.end()))
        self._end_line()
        self._forget_words()

    def _end_line(self) -> None:
        if self._in_line:
            self._output.write("\n")
            self._in_line = False

    def _forget_words(self) -> None:
        self._words, self._said = TextPieces(self._redaction), ""


class PipeScreen:
    """Prints answers, questions and commands' output to stdout, the rest to stderr; no events if `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def begin(self, _what: str = "thinking") -> None:
        """Print nothing."""

    def on_event(self, event: LoopEvent | Noticed) -> None:
        """Print a tool call, its result or a problem, unless the output is quiet."""
        if not self._quiet and not isinstance(event, Words):
            self.tell(_line(event))

    def end(self, answer: str | None) -> None:
        """Print the answer, if there is one."""
        if answer is not None:
            say(answer)
            sys.stdout.flush()

    def show(self, shown: Iterable[Line]) -> None:
        """Print the output of a command, or a question."""
        for line in shown:
            say(f"{line.lead}{line.text}")
        sys.stdout.flush()

    def tell(self, line: Line) -> None:
        """Print a message to standard error."""
        say(f"{line.lead}{line.text}", err=True)


Screen: TypeAlias = TerminalScreen | PipeScreen


class _WaitingRow:
    def __init__(self, output: Terminal) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._what = ""
        self._since = 0.0
        self._drawn = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, what: str) -> None:
        if not self._output.redraws or self._closing.is_set():
            return
        with self._lock:
            self._what, self._since = what, time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="chat-waiting", daemon=True)
            self._thread.start()

    def hide(self) -> None:
        with self._lock:
            self._what = ""
            if self._drawn:
                self._drawn = False
                self._output.draw("")

    def close(self) -> None:
        self.hide()
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(_TICK_S):
                with self._lock:
                    if self._what:
                        self._draw()
        except OSError:
            pass  # the terminal was closed

    def _draw(self) -> None:
        frames = self._output.spinner
        now = time.monotonic()
        row = f"  {frames[int(now / _TICK_S) % len(frames)]} {self._what} {int(now - self._since)} s"
        self._output.draw("", [cut(row, self._output.size().columns - 1)])
        self._drawn = True
