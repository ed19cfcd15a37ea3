"""The closed sets of words that messages, state machines and readers share, each spelled once.

Come here to add a word. Then run mypy: every `match` over the set ends in `assert_never`, so mypy names the
places that have to handle the new word. The words are written into traces, so an old one stays readable only
if it stays in its set.
"""

from typing import Literal, TypeAlias

ProcessEnding: TypeAlias = Literal["none", "polite", "terminated", "killed", "died"]
"""How a server process was ended.

- `none`: it still runs, or there is no process.
- `polite`: it exited by itself at the end of its input.
- `terminated`: it exited on SIGTERM.
- `killed`: it was killed with SIGKILL.
- `died`: it exited before it was asked to.
"""

Ending: TypeAlias = Literal[ProcessEnding, "handed_over"]
"""How a turn's session ended its server: a `ProcessEnding`, or `handed_over` to the session pool.

The pool keeps a server that was handed over, or ends it after the turn; the trace's `ServerEnded` says how.
"""

ServerPhase: TypeAlias = Literal["spawn", "initialize", "list", "call", "close"]
"""The phase in which a tool server failed."""

NoticeKind: TypeAlias = Literal[
    "noise", "bad_tool", "bad_schema", "too_large", "log", "progress", "updated", "updates_ended"
]
"""The kind of a server's act outside requests and replies.

- `noise`: it wrote a line that is not a JSON-RPC message.
- `bad_tool`: a tool, or a page of the listing, was left out.
- `bad_schema`: a tool's results are not checked against its output schema.
- `too_large`: a message was not read, or was kept as text only, or notices were left out.
- `log`, `progress`: its notifications.
- `updated`: a resource that the host has subscribed to, or the list of prompts or resources, has changed.
- `updates_ended`: a stream of such updates (`subscriptions/listen`) has ended, and the session goes on.
"""

AfterFailedConnect: TypeAlias = Literal["retry", "disable", "raise"]
"""The step after a failed attempt to connect to a tool server."""

SettlementKind: TypeAlias = Literal[
    "returned", "timed_out", "died", "skipped", "rejected", "denied", "interrupted"
]
"""How a tool call was settled."""

FailureKind: TypeAlias = Literal[
    "refused", "unavailable", "timed_out", "invalid_reply", "damaged", "unreachable"
]
"""Why a completion request failed."""

MediaKind: TypeAlias = Literal["image", "audio", "file"]
"""The kind of an attachment: an image, a sound or another file."""

ToolChange: TypeAlias = Literal["added", "removed", "changed"]
"""How a tool differs from its approved definition."""

ForceReason: TypeAlias = Literal["max_iterations", "no_content", "tool_timeout", "server_died", "budget"]
"""Why the final answer is requested without tools."""
