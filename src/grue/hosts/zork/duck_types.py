"""Adapters that use duck-typed objects as the model and the tool server of a turn.

A client is any object with `chat.completions.create(**kwargs)`, blocking or not. A manager is any object with
the coroutines `connect_session`, `disconnect_session`, `get_tool_schemas` and `call_tool`. For the agent they
work like an endpoint and a server process.
"""

from grue.hosts.zork.client_actor import ClientActor, client_actor
from grue.hosts.zork.manager_connection import ManagerConnection, SessionManager, connect_manager

__all__ = ["ClientActor", "ManagerConnection", "SessionManager", "client_actor", "connect_manager"]
