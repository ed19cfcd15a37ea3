"""A trace as a regression test: `replay("trace.jsonl")`, `assert_prefix_stable("trace.jsonl")`."""

from collections.abc import Collection
from os import PathLike

from grue.tracing.prompt_cache import PromptPart, cached_prompts, told
from grue.tracing.reading import open_episode
from grue.tracing.replay import Changes, render
from grue.tracing.replay import replay as replay_turns


def replay(path: str | PathLike[str], changes: Changes | None = None) -> int:
    """Replay a trace file or a run folder, perhaps with changes, and return the number of its turns.

    No model, server or tool runs.

    Raises:
        AssertionError: The agent or a session no longer acts as recorded; the message shows the difference.
        TraceError: The file is missing, damaged, not a trace, or of a later format.
    """
    changes = changes or Changes()
    turns = list(replay_turns(open_episode(path), changes))
    if any(turn.divergence is not None for turn in turns):
        raise AssertionError("\n".join((f"{path} does not replay:", *render(turns, changes))))
    return len(turns)


def assert_prefix_stable(path: str | PathLike[str], *, allow: Collection[PromptPart] = ()) -> int:
    """Check that prompts of a trace begin with earlier ones, and return how many prompts were checked.

    Within a conversation, each prompt has to begin with the whole of the last one that offered tools, or of
    the last one that did not. Across conversations with the same model, tools and system text have to be the
    same. Differences in the parts `allow` are accepted; allow `tools` if a request for a final answer offers
    none.

    Raises:
        AssertionError: A prompt breaks one of these rules; the message names each such prompt and the cause.
        TraceError: The file is missing, damaged, not a trace, or of a later format.
    """
    prompts = list(cached_prompts(open_episode(path)))
    broken = [each for each in prompts if each.broken is not None and each.broken.part not in allow]
    if broken:
        raise AssertionError("\n".join((f"{path}: prompts break off:", *map(told, broken))))
    return len(prompts)
