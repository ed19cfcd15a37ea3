# The public names, listed once: the interpreter imports each on first use, type checkers and editors read
# them here. `X as X` says that a stub exports a name.

from grue.engine.answers import AnswerSpec as AnswerSpec
from grue.engine.approval import ask_at_terminal as ask_at_terminal
from grue.engine.conversations.conversation import Conversation as Conversation
from grue.engine.conversations.resume import parked_turns as parked_turns
from grue.engine.outside_turns.tool_client import ToolClient as ToolClient
from grue.engine.runner import Runner as Runner
from grue.engine.runner import TurnOutcome as TurnOutcome
from grue.engine.runner import TurnRequest as TurnRequest
from grue.engine.turn import BatchItem as BatchItem
from grue.engine.turn import TurnHandle as TurnHandle
from grue.errors import MCPError as MCPError
from grue.policies import ApprovalDecision as ApprovalDecision
from grue.policies import ApprovalQuestion as ApprovalQuestion
from grue.policies import Batching as Batching
from grue.policies import Budget as Budget
from grue.policies import ContextPolicy as ContextPolicy
from grue.policies import FailurePolicy as FailurePolicy
from grue.policies import ToolAnnotations as ToolAnnotations
from grue.policies import ToolPolicy as ToolPolicy
from grue.policies import ToolRule as ToolRule
from grue.policies import ToolSearch as ToolSearch
from grue.policies import TurnLimits as TurnLimits
from grue.protocol.retry import RetryPolicy as RetryPolicy
from grue.protocol.turn.prices import Price as Price
from grue.protocol.turn.states import TurnProgress as TurnProgress
from grue.runtime.processes.limits import ProcessLimits as ProcessLimits
from grue.runtime.trace.file import TraceWriter as TraceWriter
from grue.runtime.trace.recorder import Recorder as Recorder
from grue.sandbox.box import Sandbox as Sandbox
from grue.tool_sessions.function_tools import FunctionTools as FunctionTools
from grue.tool_sessions.function_tools import ToolContext as ToolContext
from grue.tool_sessions.function_tools import tool as tool
from grue.tool_sessions.oauth_settings import OAuth as OAuth
from grue.tool_sessions.server_specs import HttpServer as HttpServer
from grue.tool_sessions.server_specs import ServerOptions as ServerOptions
from grue.tool_sessions.server_specs import StdioServer as StdioServer
from grue.tool_sessions.shell_tool import ShellTool as ShellTool
from grue.transports.llm.endpoint import LlmSettings as LlmSettings

__version__: str
