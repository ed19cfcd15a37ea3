"""The limits of a turn, and what it does after failures."""

from typing import Literal

from msgspec import Struct

from grue.errors import MCPConfigError


class Budget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be spent on the model; `None`: no limit.

    A turn that reaches a limit requests the final answer and then stops. It does not request a repair.

    Attributes:
        requests: Completions, including the forced final one. Retries are not counted.
        tokens: Input and output tokens together.
        cost_usd: Sum of the costs that the endpoint reports.
    """

    requests: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        """Refuse a negative limit."""
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if not isinstance(limit, int | float | None):
                raise MCPConfigError(f"Budget({name}={limit!r:.60}): a limit is a number; None sets none.")
            if limit is not None and not limit >= 0:
                raise MCPConfigError(f"Budget({name}={limit}): a limit may not be negative; None sets none.")


class TurnLimits(Struct, frozen=True, kw_only=True):
    """How much a turn may use.

    Attributes:
        max_tool_iterations: Replies with tool calls before the final answer is forced.
        tool_call_timeout_s: For each tool call.
        server_startup_timeout_s: For spawn, handshake and listing together.
        startup_timeouts_s: The same for single servers, by name; set by the runner for servers with a limit
            of their own, and for commands such as `npx` that may have to download the server.
        max_result_chars: Longest tool result that goes into the conversation. The trace keeps all of it.
        max_image_bytes: Largest image that is sent to the model; a larger one is described. 0: none is sent.
        max_media_bytes: Total size of the images, audio and files that are sent to the model in one turn. Any
            others are described. 0: none is sent.
        max_samplings: Requests to the model that all servers together may make (MCP sampling). 0: sampling is
            not offered to servers.
        turn_timeout_s: For the whole turn, teardown included; `None`: no limit.
        teardown_s: Seconds of `turn_timeout_s` that are reserved for closing the sessions, at most half of
            it. `None`: a tenth of it, at most 0.5 s. A turn without servers reserves nothing. If there is no
            turn limit: how long a cancelled turn waits for its sessions; `None`: 5 s.
        budget: For the model. A turn that reaches it is forced to its final answer.

    Source: R13.1, R13.2, R13.3
    """

    max_tool_iterations: int = 20
    tool_call_timeout_s: float = 30.0
    server_startup_timeout_s: float = 10.0
    max_result_chars: int = 20_000
    max_image_bytes: int = 5 * 1024 * 1024
    max_media_bytes: int = 20 * 1024 * 1024
    max_samplings: int = 0
    turn_timeout_s: float | None = None
    teardown_s: float | None = None
    budget: Budget = Budget()
    startup_timeouts_s: dict[str, float] = {}

    def startup_timeout_s(self, server: str) -> float:
        """Return the time limit in seconds for starting a server."""
        return self.startup_timeouts_s.get(server, self.server_startup_timeout_s)


OnToolDrift = Literal["ignore", "report", "refuse"]
"""How to treat a tool that differs from the tool lock. Only `refuse` withholds it from the model."""

OnFirstConnect = Literal["raise", "disable"]
"""The consequence of a failed first connect: an error, or an episode without the server's tools."""


class FailurePolicy(Struct, frozen=True, kw_only=True):
    """How a turn goes on after a failure; the defaults are those of the requirements.

    Attributes:
        first_connect: After a failed first connect of the episode: raise, or go on without tools.
        first_connects: The same for single servers, by name; set by the runner for servers that are
            configured with `required`.
        connect_retries: Further attempts after a failed connect in a later turn.
        after_timeout: After a tool call that timed out: skip the rest of the batch, run it anyway, or
            skip it and force the final answer.
        after_death: After a server died in the middle of a turn: force the final answer, or connect once
            more.
        fallbacks_before_stop: Consecutive fallback turns after which a host ends its episode.
        on_tool_drift: If a server lists a tool that is not in its lock or differs from it. Has no effect
            without a lock.

    Source: R6, R6.1, R6.5, R6.6, R6.7
    """

    first_connect: OnFirstConnect = "raise"
    connect_retries: int = 1
    after_timeout: Literal["skip", "continue", "force"] = "skip"
    after_death: Literal["force", "reconnect"] = "force"
    fallbacks_before_stop: int = 3
    on_tool_drift: OnToolDrift = "report"
    first_connects: dict[str, OnFirstConnect] = {}

    def on_first_connect(self, server: str) -> OnFirstConnect:
        """Return what follows a failed first connect to this server."""
        return self.first_connects.get(server, self.first_connect)


SupportCheck = Literal["skip", "beside", "before"]
"""When to check whether the model supports tools: never, while sessions open, or before any is opened."""
