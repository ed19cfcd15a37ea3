"""Drive an LLM agent that uses MCP tools from ordinary, synchronous Python: one call a turn.

```python
from grue import Runner, TurnRequest

with Runner.from_toml("pyproject.toml") as runner:
    outcome = runner.run_turn(TurnRequest(system="Answer briefly.", user="What is the plan?"))
    print(outcome.response, outcome.kind, outcome.tool_calls)
```

Public names are imported on first use, which keeps `import grue` fast.

To learn the system, read in this order: `messages/` (all messages), `protocol/tool_loop.py` (the turn as a
pure state machine), `actors/agent.py` (the actor that runs it), `runtime/supervisor.py` (how crashes are
handled), `runner.py` (how the parts are wired together).
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers treat it as true; importing typing would take longer than all the rest

if TYPE_CHECKING:
    from grue.answers import AnswerSpec
    from grue.approvals import ApprovalDecision, ApprovalQuestion
    from grue.conversation import Conversation
    from grue.engine.batch import BatchItem
    from grue.engine.resume import parked_turns
    from grue.engine.turn_handle import TurnHandle
    from grue.errors import (
        ActorCrashed,
        AnswerError,
        ApprovalPending,
        BudgetSpent,
        ChangeRefused,
        ConversationBusy,
        ConversationError,
        ConversationParked,
        LLMError,
        MCPConfigError,
        MCPError,
        MCPRequestError,
        MCPRequestTimedOut,
        MCPServerStartupError,
        MCPToolCallError,
        NothingToResume,
        ToolCallDenied,
        ToolCallTimedOut,
        ToolNotFound,
        ToolServerDied,
        TurnCancelled,
        TurnTimedOut,
    )
    from grue.llm_transport.endpoint import LlmSettings
    from grue.messages import (
        AssistantReply,
        Budget,
        ContextPolicy,
        FailurePolicy,
        TextDelta,
        ToolCallResult,
        ToolMessage,
        TurnLimits,
        Usage,
        UserText,
    )
    from grue.processes.limits import ProcessLimits
    from grue.protocol.retry import RetryPolicy
    from grue.protocol.turn_states import TurnProgress
    from grue.runner import Runner, TurnOutcome, TurnRequest
    from grue.runtime.trace import Recorder
    from grue.runtime.trace_file import TraceWriter
    from grue.terminal_approval import ask_at_terminal
    from grue.tool_client import ToolClient
    from grue.tool_rules import ToolAnnotations, ToolPolicy, ToolRule
    from grue.tool_sessions.function_tools import FunctionTools
    from grue.tool_sessions.server_options import ServerOptions
    from grue.tool_sessions.server_specs import HttpServer, StdioServer
    from grue.tool_sessions.shell_tool import ShellTool
    from grue.tool_sessions.tool_context import ToolContext
    from grue.tool_sessions.tool_decorator import tool

_HOMES = {
    "FunctionTools": "grue.tool_sessions.function_tools",
    "ShellTool": "grue.tool_sessions.shell_tool",
    "ToolContext": "grue.tool_sessions.tool_context",
    "tool": "grue.tool_sessions.tool_decorator",
    "LlmSettings": "grue.llm_transport.endpoint",
    "AnswerSpec": "grue.answers",
    "BatchItem": "grue.engine.batch",
    "ApprovalDecision": "grue.approvals",
    "ApprovalQuestion": "grue.approvals",
    "parked_turns": "grue.engine.resume",
    "ask_at_terminal": "grue.terminal_approval",
    "ApprovalPending": "grue.errors",
    "NothingToResume": "grue.errors",
    "ActorCrashed": "grue.errors",
    "AnswerError": "grue.errors",
    "BudgetSpent": "grue.errors",
    "ChangeRefused": "grue.errors",
    "Conversation": "grue.conversation",
    "ConversationBusy": "grue.errors",
    "ConversationError": "grue.errors",
    "ConversationParked": "grue.errors",
    "LLMError": "grue.errors",
    "MCPConfigError": "grue.errors",
    "MCPError": "grue.errors",
    "MCPRequestError": "grue.errors",
    "MCPRequestTimedOut": "grue.errors",
    "MCPServerStartupError": "grue.errors",
    "MCPToolCallError": "grue.errors",
    "ToolCallDenied": "grue.errors",
    "ToolCallTimedOut": "grue.errors",
    "ToolNotFound": "grue.errors",
    "ToolServerDied": "grue.errors",
    "TurnCancelled": "grue.errors",
    "TurnTimedOut": "grue.errors",
    "HttpServer": "grue.tool_sessions.server_specs",
    "ServerOptions": "grue.tool_sessions.server_options",
    "ProcessLimits": "grue.processes.limits",
    "StdioServer": "grue.tool_sessions.server_specs",
    "AssistantReply": "grue.messages",
    "Budget": "grue.messages",
    "ToolMessage": "grue.messages",
    "UserText": "grue.messages",
    "ContextPolicy": "grue.messages",
    "FailurePolicy": "grue.messages",
    "TextDelta": "grue.messages",
    "ToolAnnotations": "grue.tool_rules",
    "ToolCallResult": "grue.messages",
    "ToolPolicy": "grue.tool_rules",
    "ToolRule": "grue.tool_rules",
    "TurnLimits": "grue.messages",
    "Usage": "grue.messages",
    "RetryPolicy": "grue.protocol.retry",
    "TurnProgress": "grue.protocol.turn_states",
    "Runner": "grue.runner",
    "TurnOutcome": "grue.runner",
    "TurnRequest": "grue.runner",
    "Recorder": "grue.runtime.trace",
    "TraceWriter": "grue.runtime.trace_file",
    "ToolClient": "grue.tool_client",
    "TurnHandle": "grue.engine.turn_handle",
}

__all__ = [  # noqa: RUF022 - grouped by what they are for
    "Runner",
    "TurnRequest",
    "TurnOutcome",
    "Conversation",
    "UserText",
    "AssistantReply",
    "ToolMessage",
    "TurnHandle",
    "TurnProgress",
    "BatchItem",
    "AnswerSpec",
    "LlmSettings",
    "StdioServer",
    "HttpServer",
    "ServerOptions",
    "ProcessLimits",
    "FunctionTools",
    "tool",
    "ToolContext",
    "ShellTool",
    "ToolClient",
    "TurnLimits",
    "Budget",
    "ContextPolicy",
    "FailurePolicy",
    "RetryPolicy",
    "ToolPolicy",
    "ToolRule",
    "ToolAnnotations",
    "ApprovalQuestion",
    "ApprovalDecision",
    "ask_at_terminal",
    "parked_turns",
    "ToolCallResult",
    "Usage",
    "TextDelta",
    "Recorder",
    "TraceWriter",
    "MCPError",
    "MCPConfigError",
    "MCPServerStartupError",
    "MCPToolCallError",
    "ToolCallDenied",
    "ToolCallTimedOut",
    "ToolNotFound",
    "ToolServerDied",
    "MCPRequestError",
    "MCPRequestTimedOut",
    "LLMError",
    "AnswerError",
    "TurnTimedOut",
    "TurnCancelled",
    "BudgetSpent",
    "ChangeRefused",
    "ConversationError",
    "ConversationParked",
    "ConversationBusy",
    "ApprovalPending",
    "NothingToResume",
    "ActorCrashed",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'grue' has no attribute {name!r}")
    from grue.loading import load

    value = getattr(load(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
