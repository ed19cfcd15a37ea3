"""What authors of hosts import besides `grue`: connections, models, settings, tool policies, traces.

To connect an agent to your own kind of tool server, implement `ToolConnection`.
Pass it to `Runner(servers=...)`. An MCP server, a dictionary of functions and a connection of your own look
the same to the agent. `open` returns the tools, `call` makes one call, `close` ends the connection. Raise
`ServerFailed` if the connection cannot be used or was lost, and `ToolTimedOutError` if a call took too long.
Any other exception is a bug, and ends the turn as a crash. With a `ConfinedFolder`, tools can read and write
files of one folder only.

To ask a model in your own way, write an LLM actor, and pass a factory for it to `Runner(llm=...)`; see
`LlmFactory`. A `WireProfile` describes what an endpoint accepts, and a `LentConversation` encodes the
conversation so far.

To apply a `ToolPolicy` to calls that your host makes itself with a `ToolClient`, use `judge_calls`, which
returns the calls that are denied and those that need approval, and `ask_about`, which asks a person, or
returns that the host has to wait for the answer.

The functions for settings read what users write: `pyproject.toml`, `mcp_config.json`, the tool lock, and YAML
files of your own. `Runner.from_toml` does all of this at once.

Run folders, observers and readers are for writing and reading traces. `Past` resumes an episode.

```python
with RunFolder("runs/1", runner.recorder, episode_id="1"):
    runner.run_turn(...)
for envelope in open_episode("runs/1"):
    print(envelope.seq, envelope.body)
```
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
