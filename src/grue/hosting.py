"""What writers of hosts import besides `grue`: connections, models, settings, facts, traces.

Connect an agent to your own kind of tool server: implement `ToolConnection`.

Pass it to `Runner(servers=...)`. An MCP server, a dictionary of functions and a connection of your own look
the same to the agent. `open` returns the tools, `call` makes one call, `close` ends the connection. Raise
`ServerFailed` if the connection cannot be used or was lost, and `ToolTimedOutError` if a call took too long.
Any other exception is a bug, and ends the turn as a crash. `ConfinedFolder` gives tools files of one folder.

Ask a model in your own way: write an LLM actor.

A `WireProfile` says what an endpoint accepts, a `LentConversation` encodes what was said before.
Pass a factory for your actor to `Runner(llm=...)`; see `LlmFactory`.

Apply a `ToolPolicy` to calls that your host makes itself, with a `ToolClient`: `judge_calls` says which are
denied and which are asked about, and `ask_about` asks a person, or says that the host should wait.

Read the settings that users write: `pyproject.toml`, `mcp_config.json`, the tool lock, YAML of your own.
`Runner.from_toml` does all of this at once.

Write and read traces: the run folder, observers and readers; and go on with an episode (`Past`).

```python
with RunFolder("runs/1", runner.recorder, episode_id="1"):
    runner.run_turn(...)
for envelope in open_episode("runs/1"):
    print(envelope.seq, envelope.body)
```
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
