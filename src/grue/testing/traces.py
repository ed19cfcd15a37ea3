"""A trace as a regression test: `replay("trace.jsonl")`, `assert_prefix_stable("trace.jsonl")`."""

from collections.abc import Collection
from os import PathLike

from grue.tracing.prompt_cache import PromptPart, cached_prompts, told
from grue.tracing.reading import open_episode
from grue.tracing.replay import Changes, render
from grue.tracing.replay import replay as replay_turns


def replay(path: str | PathLike[str], changes: Changes | None = None) -> int:
    """Replay a trace, and return the number of its turns. No model, server or tool runs.

    A turn that was resumed counts once more for each resumption.

    ```python
    from grue.testing import replay

    def test_the_agent_decides_as_it_did() -> None:
        replay("tests/data/a_good_run")
    ```

    Args:
        path: A trace file or a run folder.
        changes: Changes to the recorded run, such as other limits; `None`: nothing is changed.

    Raises:
        AssertionError: The agent or a session no longer acts as recorded; the message shows the first
            difference and the messages that led to it.
        TraceError: The file is missing, damaged, not a trace, or of a later format.
    """
    changes = changes or Changes()
    turns = list(replay_turns(open_episode(path), changes))
    if any(turn.divergence is not None for turn in turns):
        raise AssertionError("\n".join((f"{path} does not replay:", *render(turns, changes))))
    return len(turns)


def assert_prefix_stable(path: str | PathLike[str], *, allow: Collection[PromptPart] = ()) -> int:
    """Check that prompts of a trace begin with earlier ones; return how many prompts were checked.

    Within a conversation, each later prompt has to begin with the whole of the last prompt that offered
    tools, or else of the last prompt that offered none. Across conversations with the same model, the tools
    and the system text have to be the same. `grue trace cache` shows where prompts break these rules.
    The prompts of requests that failed, or never ended, are not checked.

    Args:
        path: A trace file or a run folder.
        allow: Parts of a prompt in which a difference is accepted: `model`, `tools`, `system`, `messages`.
            What follows such a difference in a prompt is not checked. Allow `tools` if a request for a final
            answer offers none.

    Raises:
        AssertionError: A prompt breaks one of these rules; the message names each such prompt and the cause.
        TraceError: The file is missing, damaged, not a trace, or of a later format.
    """
    prompts = list(cached_prompts(open_episode(path)))
    broken = [each for each in prompts if each.broken is not None and each.broken.part not in allow]
    if broken:
        raise AssertionError("\n".join((f"{path}: prompts break off:", *map(told, broken))))
    return len(prompts)
