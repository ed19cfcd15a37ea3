"""Adapters: objects that only have the seeds' methods, as the model and the tool server of a turn.

A client is anything with `chat.completions.create(**kwargs)`, blocking or not; a manager is anything with the
coroutines `connect_session`, `disconnect_session`, `get_tool_schemas` and `call_tool`. The agent cannot tell
them from an endpoint and a server process.
"""

from grue.hosts.zork.client_actor import ClientActor, client_actor
from grue.hosts.zork.manager_connection import ManagerConnection, SessionManager, connect_manager

__all__ = ["ClientActor", "ManagerConnection", "SessionManager", "client_actor", "connect_manager"]
