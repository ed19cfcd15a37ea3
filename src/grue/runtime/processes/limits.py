"""Plain data: the limits of a child process, and how a process has ended."""

from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from grue.field_checks import OwnKeywords, check_settings


class ProcessLimits(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """Time limits for ending a server, and size limits for its messages and its standard error.

    Attributes:
        exit_grace_s: Time from closing the server's standard input until SIGTERM.
        term_grace_s: Time from SIGTERM until SIGKILL.
        cancelled_grace_s: Upper limit of `exit_grace_s` and `term_grace_s` when a cancellation closes the
            server, since a user who has pressed Ctrl-C may be waiting.
        max_line_bytes: Longest line in either direction (HTTP: longest event), and most bytes queued for a
            server that does not read. Exceeding this limit breaks the connection.
        max_message_bytes: Longest message that is read. A longer answer fails its request. For a message in a
            line or an event, a limit below 8 KiB counts as 8 KiB.
        stderr_tail_bytes: How much of the end of the server's standard error is kept.
    """

    exit_grace_s: float = 2.0
    term_grace_s: float = 2.0
    cancelled_grace_s: float = 0.5
    max_line_bytes: int = 64 * 1024 * 1024
    max_message_bytes: int = 8 * 1024 * 1024
    stderr_tail_bytes: int = 8192

    def __post_init__(self) -> None:
        check_settings(self, above_0=("max_line_bytes", "max_message_bytes"))

    def when_cancelled(self) -> Self:
        """Return these limits with `exit_grace_s` and `term_grace_s` cut to at most `cancelled_grace_s`."""
        return replace(
            self,
            exit_grace_s=min(self.exit_grace_s, self.cancelled_grace_s),
            term_grace_s=min(self.term_grace_s, self.cancelled_grace_s),
        )


class ServerExit(Struct, frozen=True):
    """How a process ended: exit `status`, or the `signal` that killed it (a name); both `None`: unknown."""

    status: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.status}"
