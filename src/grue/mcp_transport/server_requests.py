"""What a server may ask of its client, as data, and who answers it: sampling, elicitation, roots.

Off by default: a server is told of an ability only where there is somebody to answer.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from grue.messages import JsonObject


class SamplingRequest(Struct, frozen=True):
    """A server wants the host's model to say something.

    Attributes:
        system: Instructions; empty if there are none.
        messages: What was said, oldest first; untrusted text.
    """

    system: str
    messages: tuple[tuple[Literal["user", "assistant"], str], ...]


class Sampled(Struct, frozen=True):
    """The model's text."""

    text: str
    model: str


class Declined(Struct, frozen=True):
    """The host does not do what the server asks for; the reason is for the server."""

    reason: str


class ElicitationRequest(Struct, frozen=True):
    """A server wants something from the person behind the host.

    Attributes:
        message: What it says to them; untrusted text.
        schema: JSON Schema of the answer; `None` for a URL to visit, which is in the message.
    """

    message: str
    schema: JsonObject | None


Sample: TypeAlias = Callable[[SamplingRequest], Awaitable[Sampled | Declined]]
Elicit: TypeAlias = Callable[[ElicitationRequest], Awaitable[JsonObject | Declined]]


class Abilities(Struct, frozen=True, kw_only=True):
    """What a server is offered beside calling its tools.

    Attributes:
        sample: Asks the host's model; `None`: servers are not told that they may ask.
        elicit: Asks the person; `None`: every such request is declined.
        roots: As the server's own options say.
    """

    sample: Sample | None = None
    elicit: Elicit | None = None
    roots: tuple[str, ...] | None = None
