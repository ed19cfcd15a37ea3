"""The errors themselves: what a program that catches one gets."""

import pickle

import pytest

from grue import errors

ERRORS = (
    errors.TurnTimedOut("The turn took too long.", limit_s=1.5, doing="thinking"),
    errors.ApprovalPending("It waits.", turn=3, questions=("q",), expires_at=7.0),
    errors.ConversationParked("It waits.", turn=3),
    errors.ChangeRefused("No.", call_id="c1", name="a.b"),
    errors.ActorCrashed("It broke.", actor="llm"),
    errors.SandboxError("It cannot be enforced.", remedy="Use another kernel."),
    errors.MissingDependencyError("Install it.", path="agent.yaml"),
    errors.ToolCallTimedOut("It took too long.", tool="a.b"),
    errors.MCPConfigError.of_value("TurnLimits", ("teardown_s",), "it is negative."),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_whole_from_another_process(error: errors.MCPError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
    assert getattr(back, "path", None) == getattr(error, "path", None)
