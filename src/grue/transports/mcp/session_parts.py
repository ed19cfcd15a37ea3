"""The parts of a client that are needed only once its session is open: SDK, schema checks, tasks.

`McpClient` imports this module when its process has been spawned. A process of one turn sends its first
request before that, so nothing here delays the request.
"""

import jsonschema_rs as jsonschema_rs  # here, so that the first check does not wait for it

from grue.protocol.tools.server_tasks import created_task
from grue.transports.mcp import sdk
from grue.transports.mcp.schema_checks import InputSchemas, OutputSchemas
from grue.transports.mcp.tool_tasks import LOST, TaskOfCall

__all__ = ["LOST", "InputSchemas", "OutputSchemas", "TaskOfCall", "created_task", "sdk"]
