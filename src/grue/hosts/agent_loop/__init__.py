"""The agent loop: a conversation with tools, in which the MCP tools can be replaced by one function.

```python
from grue import LlmSettings, StdioServer
from grue.hosts.agent_loop import AgentLoop

with AgentLoop(llm, servers={"files": StdioServer(command="mcp-files")}) as loop:
    print(loop.run("Which notes are there?"))
    print(loop.run("Read the first one."))
```

In a test, `AgentLoop(llm, invoke_mcp_tool=invoke)` calls `invoke(name, arguments)` in place of MCP servers.
"""

from grue.hosts.agent_loop.events import LoopEvent, ToolEnded, ToolStarted, Words
from grue.hosts.agent_loop.injected import InvokeMcpTool, McpCall
from grue.hosts.agent_loop.loop import (
    AgentLoop,
    configure_mcp_client,
    invoke_mcp_tool,
    list_mcp_tools,
    reset_mcp_client,
)

__all__ = [
    "AgentLoop",
    "InvokeMcpTool",
    "LoopEvent",
    "McpCall",
    "ToolEnded",
    "ToolStarted",
    "Words",
    "configure_mcp_client",
    "invoke_mcp_tool",
    "list_mcp_tools",
    "reset_mcp_client",
]
