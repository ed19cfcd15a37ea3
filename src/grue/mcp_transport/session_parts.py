"""The parts of a client that are needed only once its session is open: SDK, schema checks, tasks.

`McpClient` imports this module when its process has been spawned. A process of one turn sends its first
request before that, so nothing here delays the request.
"""

from grue.mcp_transport import sdk
from grue.mcp_transport.input_schemas import InputSchemas
from grue.mcp_transport.output_schemas import OutputSchemas
from grue.mcp_transport.tool_tasks import LOST, TaskOfCall
from grue.protocol.server_tasks import created_task

__all__ = ["LOST", "InputSchemas", "OutputSchemas", "TaskOfCall", "created_task", "sdk"]
