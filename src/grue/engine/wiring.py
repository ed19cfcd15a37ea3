"""Put together what all turns of a runner share: the LLM actor's factory, the tool servers, the recorder.

Come here to change how a `Runner`'s arguments become the parts that `TurnActors` makes a turn from.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from grue.engine.approval import Approval
from grue.engine.argument_checks import check_fields
from grue.engine.tool_servers import ToolServer, connect_to, hide_secrets, pinning, usable_servers
from grue.engine.turns_under_way import TurnsUnderWay
from grue.errors import ConversationError, MCPConfigError
from grue.mcp_transport.client_options import ClientOptions
from grue.messages import LlmCommand, OnToolDrift, ServerName, SupportCheck, TurnEvent
from grue.processes.limits import ProcessLimits
from grue.processes.process_group import ProcessRegistry
from grue.protocol.chat_wire.failures import shown_endpoint
from grue.protocol.tool_lock import ToolLock
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.trace import Recorder
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.server_requests import Abilities, Elicit, Sample

if TYPE_CHECKING:
    from grue.actors.llm import LentConversation
    from grue.engine.presumed_listings import PresumedListings
    from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
    from grue.protocol.chat_wire.profile import WireProfile

LlmFactory: TypeAlias = Callable[[Mailbox[LlmCommand], Mailbox[TurnEvent], Note], Actor[LlmCommand]]
"""Makes the actor that takes `RequestCompletion`. Arguments: its mailbox, the agent's, and its `note`."""


@runtime_checkable
class LendingFactory(Protocol):
    """An `LlmFactory` whose actors can continue a conversation that began before their turn.

    `Runner.conversation` and `Runner.resume` need one. A factory of your own becomes one with these members.
    """

    @property
    def profile(self) -> "WireProfile":
        """How the model's messages are written."""
        ...

    @property
    def model(self) -> str:
        """The model. Thoughts of another one are not sent to it."""
        ...

    def lending(self, lent: "LentConversation") -> LlmFactory:
        """Return a factory for one turn, whose actor continues `lent`.

        The actor answers requests for the conversation `lent.id` with `lent.ask` and `lent.keep`, and keeps
        all other conversations itself.
        """
        ...


class Wiring(Struct, frozen=True, kw_only=True):
    """The parts that all turns of a runner share.

    Attributes:
        llm: Makes the LLM actor of a turn.
        endpoint: The endpoint that these actors ask; `None` if `llm` is a factory of the host's.
        servers: The tool servers by name.
        recorder: Records all messages.
        process_limits: How server processes are ended.
        elicit: Asks the user a server's question; `None`: always declined.
        tool_lock: The tool definitions that the user has approved; `None`: all are accepted.
        approval: Who answers when the policy asks about a tool call.
        under_way: The turns that are running.
        presumed: What turns may presume that the servers list; `None`: nothing.
    """

    llm: LlmFactory
    endpoint: "LlmEndpoint | None"
    servers: Mapping[ServerName, ToolServer]
    recorder: Recorder
    process_limits: ProcessLimits
    elicit: Elicit | None
    tool_lock: ToolLock | None
    approval: Approval = Approval()
    under_way: TurnsUnderWay = field(default_factory=TurnsUnderWay)
    presumed: "PresumedListings | None" = None

    def lending(self, lent: "LentConversation") -> "Wiring":
        """Return the parts of a turn whose LLM actor continues `lent`.

        Raises:
            ConversationError: The actors of the host's factory cannot.
        """
        return replace(self, llm=self.lender.lending(lent))

    @property
    def lender(self) -> LendingFactory:
        """The factory whose actors can continue a conversation.

        Raises:
            ConversationError: The runner has another one.
        """
        llm: object = self.llm
        if not isinstance(llm, LendingFactory):
            raise ConversationError(
                "This needs an endpoint, or a factory whose actors can continue a conversation, and the"
                " runner's llm is another factory. Give the runner LlmSettings, or give the factory the"
                " members of grue.models.LendingFactory."
            )
        return llm


def connect_fresh(
    wiring: Wiring,
    name: ServerName,
    registry: ProcessRegistry,
    on_tool_drift: OnToolDrift,
    sample: Sample | None = None,
    before_import: Callable[[], Awaitable[None]] | None = None,
) -> Connect:
    """Return a factory of new connections to a server, with the runner's limits and tool lock.

    Args:
        wiring: The parts that the turns share.
        name: The server.
        registry: Lists the server's process.
        on_tool_drift: What to do with a tool that differs from the tool lock.
        sample: Answers the server's sampling requests; `None`: they are declined.
        before_import: Awaited before the SDK is imported, in a thread; `None`: it is imported at once.
    """
    options = ClientOptions(
        limits=wiring.process_limits,
        abilities=Abilities(sample=sample, elicit=wiring.elicit),
        pinning=pinning(wiring.tool_lock, name, on_tool_drift),
        on_secret=wiring.recorder.hide,
        before_import=before_import,
        on_listed=None if wiring.presumed is None else wiring.presumed.on_listed(name),
    )
    return connect_to(name, wiring.servers[name], registry, options)


class EndpointActors:
    """The `LlmFactory` of an endpoint: makes LLM actors that send their requests to it.

    Args:
        endpoint: The endpoint.
        lent: The conversation that the turn continues; `None`: none.
        on_sent: Called whenever a request has been written; `None`: nobody asks.
        open_ahead: Connect before the first request.
    """

    def __init__(
        self,
        endpoint: "LlmEndpoint",
        lent: "LentConversation | None" = None,
        on_sent: Callable[[], None] | None = None,
        *,
        open_ahead: bool = False,
    ) -> None:
        from grue.actors.llm import LlmActor  # only a runner with an endpoint needs it

        self._endpoint = endpoint
        self._lent = lent
        self._on_sent = on_sent
        self._open_ahead = open_ahead
        self._make = LlmActor

    def __call__(
        self, mailbox: Mailbox[LlmCommand], agent: Mailbox[TurnEvent], note: Note
    ) -> Actor[LlmCommand]:
        """Return an LLM actor for one turn."""
        actor = self._make(mailbox, agent, self._endpoint, note, self._lent, self._on_sent)
        actor.open_ahead = self._open_ahead
        return actor

    @property
    def profile(self) -> "WireProfile":
        """The endpoint's capabilities, as far as they are known."""
        return self._endpoint.profile

    @property
    def model(self) -> str:
        """The model that the endpoint is asked for."""
        return self._endpoint.settings.model

    def lending(self, lent: "LentConversation") -> "EndpointActors":
        """Return a factory for the turn that continues this conversation."""
        return EndpointActors(self._endpoint, lent)

    def reporting_sent(self, on_sent: Callable[[], None]) -> "EndpointActors":
        """Return a factory whose actors call `on_sent` whenever a request has been written."""
        return EndpointActors(self._endpoint, self._lent, on_sent)

    def opening_ahead(self) -> "EndpointActors":
        """Return a factory whose actors connect before the first request, while servers start."""
        return EndpointActors(self._endpoint, self._lent, self._on_sent, open_ahead=True)

    def support_check(self) -> SupportCheck:
        """Return when the turn is to check that the model can call tools."""
        return self._endpoint.support_check()


def wire(
    llm: "LlmSettings | LlmEndpoint | LlmFactory",
    servers: Mapping[str, ToolServer],
    *,
    recorder: Recorder,
    process_limits: ProcessLimits | None = None,
    elicit: Elicit | None = None,
    tool_lock: ToolLock | None = None,
) -> Wiring:
    """Return the shared parts, and register all configured secrets with the recorder.

    Args:
        llm: The model: an endpoint, its settings, or a factory for an actor of the host's.
        servers: Tool servers by name.
        recorder: Records all messages.
        process_limits: How server processes are ended; `None`: the default limits.
        elicit: Asks the user a server's question; `None`: always declined.
        tool_lock: The tool definitions that the user has approved; `None`: all are accepted.

    Raises:
        MCPConfigError: A server name is invalid.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old.
    """
    if callable(llm) and not isinstance(llm, type):
        endpoint, factory = None, llm
    else:
        endpoint = _endpoint(llm)
        endpoint.begin()
        factory = EndpointActors(endpoint)
    usable = usable_servers(servers)
    hide_secrets(recorder, usable.values())
    settings = getattr(llm, "settings", None) if endpoint is None else endpoint.settings
    named_values = getattr(settings, "named_values", dict)
    for name, value in named_values().items():
        recorder.hide(name, value)
    return Wiring(
        llm=factory,
        endpoint=endpoint,
        servers=usable,
        recorder=recorder,
        process_limits=process_limits or ProcessLimits(),
        elicit=elicit,
        tool_lock=tool_lock,
    )


def _endpoint(llm: object) -> "LlmEndpoint":
    from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings

    if isinstance(llm, LlmEndpoint):
        return llm
    if isinstance(llm, LlmSettings):
        check_fields("llm", llm)
        return LlmEndpoint(llm)
    if isinstance(llm, str):
        url = "://" in llm
        form = f"base_url={shown_endpoint(llm)!r}, model=..." if url else f"base_url=..., model={llm!r:.80}"
        raise MCPConfigError(
            f"llm= wants settings, not the {'URL' if url else 'name'} alone: llm=LlmSettings({form})."
        )
    raise MCPConfigError(
        f"llm= wants LlmSettings(base_url=..., model=...), an LlmEndpoint or a factory, not {llm!r:.80}."
    )
