"""What a turn gets to know of what was said before it."""

import pytest

from grue.engine.conversations.kept_conversation import with_sizes
from grue.messages import AssistantReply, RunTurn, Said, SystemText, UserText
from grue.policies import ContextPolicy

SAID = (Said((SystemText("s"), UserText("u" * 400))), AssistantReply(content="a" * 400))


@pytest.mark.parametrize(("counted", "used"), [(None, 3.0), (4.0, 4.0), (5000.0, 100.0), (0.0001, 0.1)])
def test_sizes_follow_the_endpoints_count_within_reason(counted: float | None, used: float) -> None:
    command = RunTurn(turn=1, system="s", user="v", context=ContextPolicy(bytes_per_token=3.0))
    sized = with_sizes(command, SAID, counted)
    assert sized.context is not None
    assert sized.context.bytes_per_token == used
    assert len(sized.earlier) == 2
    assert 400 / used <= sized.earlier[1].tokens <= 400 / used + 10


def test_without_a_policy_nothing_is_sized() -> None:
    assert with_sizes(RunTurn(turn=1, system="s", user="v"), SAID).earlier == ()
