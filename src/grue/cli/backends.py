"""Export a trace to Langfuse or OpenTelemetry, if a command is given `--langfuse` or `--otel`."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grue.tracing.observers.outbox import Outbox


@contextmanager
def chosen_backends(episode_id: str, *, langfuse: bool, otel: bool) -> "Iterator[list[Outbox]]":
    """Yield the chosen trace observers. At the end they send what is left, for a few seconds at most."""
    with ExitStack() as open_ones:
        chosen: list[Outbox] = []
        if langfuse:
            from grue.tracing.observers.langfuse import LangfuseObserver, require_langfuse

            require_langfuse()
            chosen.append(open_ones.enter_context(closing(LangfuseObserver(session_id=episode_id))))
        if otel:
            from grue.tracing.observers.otel import OtelObserver, require_otel

            require_otel()
            chosen.append(open_ones.enter_context(closing(OtelObserver(session_id=episode_id))))
        yield chosen
