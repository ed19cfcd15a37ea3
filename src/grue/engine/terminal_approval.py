"""Ask about tool calls at the terminal: the `approve` callback for programs that a person watches."""

import contextlib
import sys
import termios

from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.runtime.safe_text import printable, shown_whole

_REASON_CHARS = 500
NOT_SHOWN = "its arguments are too long to be shown whole, so nobody can approve them here"


def ask_at_terminal(questions: tuple[ApprovalQuestion, ...]) -> list[ApprovalDecision]:
    """Ask about each call on standard error, and read a line with `y` or `n` from standard input.

    Pass it to a runner: `Runner(approve=ask_at_terminal)`. If one of the two is not a terminal, or the input
    ends, every call is denied. The arguments are shown whole; a call is denied if they are too long for that.
    What was typed before a question is on the screen does not answer it.
    """
    return [_ask(question) for question in questions]


def _ask(question: ApprovalQuestion) -> ApprovalDecision:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return question.deny("it needs an approval, and there is no terminal to ask at")
    rows = shown_whole(question.arguments)
    if rows is None:
        return question.deny(NOT_SHOWN)
    why = f" ({printable(question.reason, _REASON_CHARS)})" if question.reason else ""
    # Whole lines, because a live view shows nothing less.
    asked = [f"Allow {printable(question.name)}", *(f"  {row}" for row in rows), f"?{why} [y/N]"]
    sys.stderr.write("\n".join(asked) + "\n")
    sys.stderr.flush()
    forget_typed(sys.stdin)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return question.approve()
    return question.deny()


def forget_typed(terminal: object) -> None:
    """Discard what was typed before now: it cannot be meant for a question that is asked now."""
    fileno = getattr(terminal, "fileno", None)
    with contextlib.suppress(OSError, ValueError, termios.error):
        if fileno is not None:
            termios.tcflush(fileno(), termios.TCIFLUSH)
