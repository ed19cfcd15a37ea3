"""The offline model: a script that replaces the LLM, without network or API key.

Its output shows that it is a script: the model is called `grue-offline-script`, the ids of its completions
begin with `offline-`, and the thinking in its answers ends with "(scripted)". It has a list of commands for
two games, The House and Zork I, and explores other games by simple rules (`repertoire.py`). In some turns it
calls a thinking tool, if the request offers one whose schema it can satisfy (`thinking.py`).

For `grue chat --offline` it makes the tool calls that the user spells out (`chatting.py`). For `grue run
--offline` it writes the report of the bundled example (`reporting.py`).

It replaces only the network (`transport.py`). Everything else is real: the request is encoded, sent with
httpx, and checked as strictly as a provider checks it (`chat_request.py`). The reply depends on the request
alone (`script.py`). It is decoded like any model's reply, and the tools that it calls run.
"""

from grue.testing.offline.chat_request import ChatRequest
from grue.testing.offline.chatting import reply_in_chat
from grue.testing.offline.playbook import Playbook
from grue.testing.offline.repertoire import playbook_for
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
