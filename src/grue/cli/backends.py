"""Choose Langfuse and OpenTelemetry by the options of a command."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from grue.tracing.observers.langfuse import LangfuseObserver
    from grue.tracing.observers.otel import OtelObserver


class Backends(ExitStack):
    """Observers that use the network. Closing the stack sends the remaining data, within seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[LangfuseObserver | OtelObserver] = []

    @classmethod
    def chosen(cls, episode_id: str, *, langfuse: bool, otel: bool) -> Self:
        """Return the observers that the options ask for.

        Raises:
            MissingDependencyError: A package that one of them needs is not installed.
        """
        backends = cls()
        if langfuse:
            from grue.tracing.observers.langfuse import LangfuseObserver, require_langfuse

            require_langfuse()
            backends.add(LangfuseObserver(session_id=episode_id))
        if otel:
            from grue.tracing.observers.otel import OtelObserver, require_otel

            require_otel()
            backends.add(OtelObserver(session_id=episode_id))
        return backends

    def add(self, observer: "LangfuseObserver | OtelObserver") -> None:
        """Add an observer, and close it when this stack is closed."""
        self.observers.append(observer)
        self.callback(observer.close)
