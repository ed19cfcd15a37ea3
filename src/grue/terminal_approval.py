"""Ask about tool calls at the terminal: the `approve` callback for programs that a person watches."""

import sys

from grue.messages import ApprovalDecision, ApprovalQuestion
from grue.protocol.safe_text import printable

_SHOWN_CHARS = 500


def ask_at_terminal(questions: tuple[ApprovalQuestion, ...]) -> list[ApprovalDecision]:
    """Ask about each call on standard error, and read a line with `y` or `n` from standard input.

    Pass it to a runner: `Runner(approve=ask_at_terminal)`. If one of the two is not a terminal, or the input
    ends, every call is denied.
    """
    return [_ask(question) for question in questions]


def _ask(question: ApprovalQuestion) -> ApprovalDecision:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return question.deny("it needs an approval, and there is no terminal to ask at")
    why = f" ({printable(question.reason, _SHOWN_CHARS)})" if question.reason else ""
    arguments = printable(repr(question.arguments), _SHOWN_CHARS)
    asked = f"Allow {printable(question.name, _SHOWN_CHARS)} {arguments}?{why} [y/N]"
    sys.stderr.write(f"{asked}\n")  # a whole line, because a live view shows nothing less
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return question.approve()
    return question.deny()
