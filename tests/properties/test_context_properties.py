"""Turns under a `ContextPolicy`: whatever their calls return, every call is answered and history is kept.

`WindowedTurn` checks in each request that every call has exactly one answer, in order, and that nothing has
changed but by a `RewriteHistory`.
"""

import pytest
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rows import first_of
from turns import run
from windowed_turns import Endpoint, WindowedTurn

from grue.messages import Cleared, CompletionReceived, TurnCompleted, TurnFailed
from grue.policies import ContextOverflow, ContextPolicy, TurnLimits
from grue.protocol.context.fit import CALL_AGAIN, DO_NOT_REPEAT

REPLIES = st.lists(st.lists(st.integers(0, 60_000), min_size=1, max_size=4), max_size=12)
POLICIES = st.builds(
    ContextPolicy,
    window_tokens=st.integers(2_000, 40_000) | st.none(),
    reply_tokens=st.integers(0, 4_000),
    max_summaries=st.integers(0, 3),
    low_water=st.floats(0.1, 0.7),
)
SAYINGS = st.sampled_from(
    [
        lambda window, tokens: ContextOverflow(window_tokens=window, prompt_tokens=tokens),
        lambda window, _: ContextOverflow(window_tokens=window),
        lambda _, __: ContextOverflow(),
    ]
)


def turn_of(policy: ContextPolicy, rounds: int) -> object:
    limits = TurnLimits(max_tool_iterations=max(1, rounds))
    return replace(run("a", limits=limits), context=policy, binds_calls=True)


ENDPOINTS = st.builds(
    Endpoint,
    window_tokens=st.integers(2_000, 40_000),
    bytes_per_token=st.floats(1.5, 6),
    counts=st.booleans(),
    summary=st.sampled_from(["All is well.", None, " "]),
    says=SAYINGS,
)


@settings(max_examples=examples(150), deadline=None)
@given(POLICIES, REPLIES, ENDPOINTS)
def test_every_call_is_answered_exactly_once_within_the_bound_of_requests(
    policy: ContextPolicy, replies: list[list[int]], endpoint: Endpoint
) -> None:
    turn = WindowedTurn(turn_of(policy, len(replies)), replies, endpoint).play()
    assert isinstance(turn.end, TurnCompleted | TurnFailed)
    assert len(turn.prompts) <= len(replies) + 2 + policy.max_summaries + 1
    assert turn.end.requests == len(turn.prompts)
    assert sum(prompt.aside for prompt in turn.prompts) <= policy.max_summaries
    assert turn.end.iterations <= max(1, len(replies))
    if isinstance(turn.end, TurnCompleted):
        assert turn.refused <= 1 + policy.max_summaries
        assert len(turn.end.tool_calls) == sum(map(len, replies)), "the trace has every result"
        whole = {record.call_id: record.result.content for record in turn.end.tool_calls}
        assert all(len(str(whole[call_id])) == size for call_id, size in turn.sizes.items())


@settings(max_examples=examples(100), deadline=None)
@given(
    replies=REPLIES,
    window=st.integers(6_000, 40_000),
    bytes_per_token=st.floats(3, 6),
    summaries=st.integers(0, 2),
)
@example(
    replies=[
        *([0], [0], [0], [0, 0, 0, 1717], [0, 0, 16, 982], [73, 438, 670, 931], [58, 1492, 8068]),
        *([145, 1390, 1390, 1444], [91, 1576, 3910, 1024], [0, 0, 1577], [15070]),
    ],
    window=6000,
    bytes_per_token=3.0,
    summaries=0,
)
def test_no_overflow_reaches_an_endpoint_whose_texts_have_no_more_tokens_than_expected(
    replies, window, bytes_per_token, summaries
) -> None:
    policy = ContextPolicy(window_tokens=window, reply_tokens=500, max_summaries=summaries)
    turn = WindowedTurn(
        turn_of(policy, len(replies)),
        replies,
        Endpoint(window_tokens=window, bytes_per_token=bytes_per_token),
    ).play()
    assert isinstance(turn.end, TurnCompleted)
    assert not turn.refused


@settings(max_examples=examples(100), deadline=None)
@given(replies=REPLIES, window=st.integers(6_000, 40_000), summaries=st.integers(0, 2))
def test_the_last_reply_and_its_results_are_never_replaced_by_stubs(replies, window, summaries) -> None:
    policy = ContextPolicy(window_tokens=window, reply_tokens=500, max_summaries=summaries)
    turn = WindowedTurn(turn_of(policy, len(replies)), replies, Endpoint(window_tokens=window)).play()
    for prompt in turn.prompts:
        if prompt.aside:
            continue
        last = max((at for at, i in enumerate(prompt.items) if isinstance(i, CompletionReceived)), default=0)
        shown = [getattr(item, "content", "") for item in prompt.items[last:]]
        assert not any(CALL_AGAIN in str(text) or DO_NOT_REPEAT in str(text) for text in shown)


@settings(max_examples=examples(60), deadline=None)
@given(replies=REPLIES)
def test_a_turn_without_a_policy_says_what_it_said_before_there_was_one(replies) -> None:
    limits = TurnLimits(max_tool_iterations=max(1, len(replies)))
    plain = WindowedTurn(run("a", limits=limits), replies, Endpoint(window_tokens=10**9)).play()
    roomy = ContextPolicy(window_tokens=10**9)
    kept = WindowedTurn(turn_of(roomy, len(replies)), replies, Endpoint(window_tokens=10**9)).play()
    assert [prompt.items for prompt in plain.prompts] == [prompt.items for prompt in kept.prompts]
    assert not plain.rewrites
    assert not kept.rewrites


@pytest.mark.parametrize("summaries", first_of([1, 0, 3]))
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.slow
def test_300_calls_with_results_of_20_kb_under_a_window_of_32k(summaries: int, counts: bool) -> None:
    policy = ContextPolicy(window_tokens=32_000, max_summaries=summaries)
    turn = WindowedTurn(
        turn_of(policy, 300), [[20_000]] * 300, Endpoint(window_tokens=32_000, counts=counts)
    ).play()
    assert isinstance(turn.end, TurnCompleted)
    assert len(turn.end.tool_calls) == 300
    assert not turn.refused
    assert all(isinstance(rewrite.change, Cleared) for rewrite in turn.rewrites) or not counts
    tokens = [prompt.tokens for prompt in turn.prompts if not prompt.aside]
    assert sum(tokens[200:300]) < 1.2 * sum(tokens[50:150]), "the cost of a request grows"
