"""The scripted model that stands in for an LLM: no network, no key, no intelligence.

It is a script, and says so wherever it shows: its model is `grue-offline-script`, the ids of its completions
begin with `offline-`, and what it gives as its thinking ends in "(scripted)". It knows two games, the house
and Zork I, by their commands (`repertoire.py`), and explores others plainly (`exploring.py`). Where a puzzle
asks for it, it calls a thinking tool, if the request offers one whose schema it can satisfy (`thinking.py`).

It takes the place of the network (`transport.py`), so that everything else is real: the request is encoded,
sent by httpx, checked as strictly as a provider would (`chat_request.py`), answered from nothing but what it
says (`script.py`), and decoded; the tools that it calls are called.
"""

from grue.offline.playbook import Playbook
from grue.offline.repertoire import playbook_for
from grue.offline.script import MODEL
from grue.offline.transport import ScriptedModelTransport

__all__ = ["MODEL", "Playbook", "ScriptedModelTransport", "playbook_for"]
