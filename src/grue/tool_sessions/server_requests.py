"""What a server may send besides replies: notices, and requests (sampling, elicitation, roots)."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.policies import NoticeKind

Notify: TypeAlias = Callable[[NoticeKind, str], None]  # kind and untrusted text of a server's notice


class SamplingRequest(Struct, frozen=True):
    """A server asks for a completion by the host's model. Both fields are untrusted."""

    system: str
    messages: tuple[tuple[Literal["user", "assistant"], str], ...]  # oldest first


class Sampled(Struct, frozen=True):
    """The answer to a sampling request: a text, and the name of the model that wrote it."""

    text: str
    model: str


class Declined(Struct, frozen=True):
    """The host declines a request. For a sampling request, the reason is sent to the server."""

    reason: str


class ElicitationRequest(Struct, frozen=True):
    """A server asks the user for input."""

    message: str  # untrusted
    schema: m.JsonObject | None  # the answer's schema; `None`: the user is to visit the URL in `message`
    server: m.ServerName  # such as `crm`, or `mcp.crm` in the agent loop; show it to the user


Sample: TypeAlias = Callable[[SamplingRequest], Awaitable[Sampled | Declined]]
Elicit: TypeAlias = Callable[[ElicitationRequest], Awaitable[m.JsonObject | Declined]]


class Abilities(Struct, frozen=True, kw_only=True):
    """How the host answers a server's requests. `None`: the ability is not announced to the server."""

    sample: Sample | None = None
    elicit: Elicit | None = None
    roots: tuple[str, ...] | None = None  # the folders from `ServerOptions.roots`
