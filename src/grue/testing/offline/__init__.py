"""The offline model: a script that replaces the LLM, without network or API key.

Its output shows that it is a script: the model is called `grue-offline-script`, and its answers contain
"(scripted)" unless the request's schema prevents it. It answers in place of the network (`transport.py`).
Everything else is real: requests go through httpx and are checked, and the tools that the script calls run.
"""

from grue.testing.offline.chat_request import ChatRequest
from grue.testing.offline.chatting import reply_in_chat
from grue.testing.offline.repertoire import Playbook, playbook_for
from grue.testing.offline.reporting import reply_to_task
from grue.testing.offline.script import MODEL, OFFLINE_URL, FunctionCall, Reply
from grue.testing.offline.transport import ScriptedModelTransport, offline_endpoint

__all__ = [
    "MODEL",
    "OFFLINE_URL",
    "ChatRequest",
    "FunctionCall",
    "Playbook",
    "Reply",
    "ScriptedModelTransport",
    "offline_endpoint",
    "playbook_for",
    "reply_in_chat",
    "reply_to_task",
]
