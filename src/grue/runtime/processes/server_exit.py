"""`ServerExit`: the end of a server process, as data."""

from msgspec import Struct


class ServerExit(Struct, frozen=True):
    """The end of a process: by itself with a `status`, or killed by a `signal` (a name such as `SIGKILL`)."""

    status: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.status}"
