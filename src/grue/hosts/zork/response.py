"""The answer that the model gives in each turn, and its check."""

from pydantic import BaseModel, Field

from grue import AnswerSpec
from grue.hosts.zork.games.commands import sanitise_command

FALLBACK_ACTION = "look"
"""The command to play if the model gives none. It changes nothing in any game.

Source: R15.3
"""


class AgentResponse(BaseModel):
    """The model's decision for one turn.

    Source: R15.2, P47
    """

    thinking: str = Field(description="Why this is the best next command, in one or two sentences.")
    action: str = Field(description="One game command, such as 'take lamp' or 'north'. Never more than one.")
    new_objective: str | None = Field(
        default=None, description="A goal that takes several turns, when there is a new one; otherwise null."
    )


def playable(response: AgentResponse) -> AgentResponse:
    """Return the response with its action cleaned up, so that a game can play it.

    Raises:
        ValueError: The action is not a playable command.

    Source: P2
    """
    action = sanitise_command(response.action)
    if action is None:
        raise ValueError(f"action: {response.action!r} is not one command that the game takes")
    return response.model_copy(update={"action": action})


def answer_spec() -> AnswerSpec[AgentResponse]:
    """Return the answer of the Zork host: a playable `AgentResponse`, with `look` as the fallback."""
    return AnswerSpec.from_model(
        AgentResponse, check=playable, fallback=AgentResponse(thinking="", action=FALLBACK_ACTION), told=True
    )
