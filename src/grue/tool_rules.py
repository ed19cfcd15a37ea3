"""The policy for tools, as data: `ToolPolicy`, a table of `ToolRule`s, and the annotations that they match.

Come here to see what a rule can say. `protocol/tool_policy.py` applies the table. The types are part of the
messages, and `grue.messages` exports them, so that a trace tells which policy a turn had.
"""

from typing import Literal

from msgspec import Struct

Verdict = Literal["allow", "ask", "deny"]
"""A rule's verdict: a call is made, is made after a person has approved it, or is not made."""


class ToolAnnotations(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server's untrusted statements about a tool's behaviour. `None`: the server does not state it.

    Attributes:
        read_only: The tool changes nothing.
        destructive: It may delete or overwrite. Only meaningful for a tool that is not read-only.
        idempotent: A second call with the same arguments has no further effect. Likewise.
        open_world: It reaches things outside the server's own domain, such as the web.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class ToolRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a `ToolPolicy`: which tools it is about, and what it says about them.

    A row matches if all that it names matches. A row that names nothing matches every tool.

    Attributes:
        tools: Patterns of canonical names (`server.tool`), of which one has to match. `*` stands for any
            characters, `?` for one, `[ab]` for one of a set. Upper and lower case differ.
        read_only: Match only tools with this annotation; `None`: any. A missing annotation has the default
            of the MCP specification: not read-only, destructive, not idempotent, open world. A read-only tool
            counts as neither destructive nor unrepeatable.
        destructive: Likewise.
        idempotent: Likewise.
        open_world: Likewise.
        verdict: What happens to a call.
        max_calls: Calls of each such tool in one turn; further calls are denied. Calls that were asked about
            count, also those that a person denied. `None`: no limit.
        parallel: Such a call may run while calls to other servers run, if the tool is read-only. Within one
            server, calls always run one at a time.
        reason: Told to the model if a call is denied, and shown to the person who is asked.
    """

    tools: tuple[str, ...] = ("*",)
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    verdict: Verdict = "allow"
    max_calls: int | None = None
    parallel: bool = False
    reason: str = ""


class ToolPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules for tool calls: made, asked about or denied. The default allows every call, one at a time.

    Attributes:
        rules: The first row that matches a tool decides. A tool that no row matches is allowed.
        trusted: Servers whose annotations are trusted. Those of other servers, unless the tool lock holds
            them, can only make the result stricter. Those of the host's functions always are.
        parking: A turn that has to ask ends, and `Runner.resume` goes on with it once a person has answered.
            Requires a trace file. Without parking the runner's `approve` callback is asked.
        park_for_s: Seconds after which a parked question expires; its calls are then denied. `None`: never.
    """

    rules: tuple[ToolRule, ...] = ()
    trusted: tuple[str, ...] = ()
    parking: bool = False
    park_for_s: float | None = None
