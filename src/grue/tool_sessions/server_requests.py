"""What a server may send to its client besides replies: notices and requests (sampling, elicitation, roots).

A server is told only of the kinds of requests that the host answers. By default these are none.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.policies import NoticeKind

Notify: TypeAlias = Callable[[NoticeKind, str], None]
"""Called with the kind and the untrusted text of each notice about a server, such as a log message."""


class SamplingRequest(Struct, frozen=True):
    """A server asks for a completion by the host's model. Both fields are untrusted.

    `messages`: the role and the text of each message, the oldest message first.
    """

    system: str
    messages: tuple[tuple[Literal["user", "assistant"], str], ...]


class Sampled(Struct, frozen=True):
    """The answer to a sampling request: a text, and the name of the model that wrote it."""

    text: str
    model: str


class Declined(Struct, frozen=True):
    """The host declines a request. The reason is sent to the server."""

    reason: str


class ElicitationRequest(Struct, frozen=True):
    """A server asks the user for input.

    Attributes:
        message: The text for the user; untrusted.
        schema: JSON Schema of the answer; `None` if the user is to visit a URL, which is in the message.
        server: The server's name with its prefix, such as `mcp.crm`. Show it to the user.
    """

    message: str
    schema: m.JsonObject | None
    server: m.ServerName


Sample: TypeAlias = Callable[[SamplingRequest], Awaitable[Sampled | Declined]]
Elicit: TypeAlias = Callable[[ElicitationRequest], Awaitable[m.JsonObject | Declined]]


class Abilities(Struct, frozen=True, kw_only=True):
    """How the host answers a server's requests. `None`: grue does not announce the ability, and refuses them.

    Attributes:
        sample: Returns the answer to a sampling request.
        elicit: Asks the user, and returns the answer to an elicitation request.
        roots: The answer to a request for roots: the folders from `ServerOptions.roots`.
    """

    sample: Sample | None = None
    elicit: Elicit | None = None
    roots: tuple[str, ...] | None = None
