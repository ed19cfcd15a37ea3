"""What the agent answers a turn with, and how a text is read as one."""

from pydantic import BaseModel, Field

from grue.answers import AnswerSpec
from grue.games.commands import sanitise_command

FALLBACK_ACTION = "look"
"""The safe default: it changes nothing in any game (R15.3)."""


class AgentResponse(BaseModel):
    """The model's decision for one turn (R15.2, P47)."""

    thinking: str = Field(description="Why this is the best next command, in one or two sentences.")
    action: str = Field(description="One game command, such as 'take lamp' or 'north'. Never more than one.")
    new_objective: str | None = Field(
        default=None, description="A goal that takes several turns, when there is a new one; otherwise null."
    )


def playable(response: AgentResponse) -> AgentResponse:
    """Return the response with an action that a game can take (P2).

    Raises:
        ValueError: Nothing playable is in it.
    """
    action = sanitise_command(response.action)
    if action is None:
        raise ValueError(f"action: {response.action!r} is not one command that the game takes")
    return response.model_copy(update={"action": action})


def answer_spec() -> AnswerSpec[AgentResponse]:
    """Return the Zork host's answer: a playable `AgentResponse`, and `look` where there is none."""
    return AnswerSpec.from_model(
        AgentResponse, check=playable, fallback=AgentResponse(thinking="", action=FALLBACK_ACTION)
    )
