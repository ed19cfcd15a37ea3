"""What writers of hosts import besides `grue`: connections, models, sessions, settings, traces.

Connect an agent to your own kind of tool server: implement `ToolConnection`.

Pass it to `Runner(servers=...)`. An MCP server, a dictionary of functions and a connection of your own look
the same to the agent. `open` returns the tools, `call` makes one call, `close` ends the connection. Raise
`ServerFailed` if the connection cannot be used or was lost, and `ToolTimedOutError` if a call took too long.
Any other exception is a bug, and ends the turn as a crash. `ConfinedFolder` gives tools files of one folder.

Ask a model in your own way: write an LLM actor or a blocking client with the same rules as `Runner`.

The parts are pure, except `LlmEndpoint` and the mailbox: an `EncodedConversation` encodes what was said, a
`WireProfile` says what an endpoint accepts, and `permit_for` waits until a request may be sent.
Pass a factory for your actor to `Runner(llm=...)`; see `LlmFactory`.

Hold a session with a tool server yourself, and the state of each server from turn to turn.

A `Runner` opens and closes its sessions on its own. Use these parts if your host keeps a session open
between turns, as an object with its own methods, or stores the state of its servers to resume an episode.
`ToolClient` is simpler if you only want to call tools.

The same parts apply a `ToolPolicy` to calls that your host makes itself: `judge_calls` says which are denied
and which are asked about, and `ask_about` asks a person, or says that the host should wait.

Read the settings that users write: `pyproject.toml`, `mcp_config.json`, the tool lock, YAML of your own.

`Runner.from_toml` does all of this at once. The parts are for hosts that change settings before they use
them.

Write and read traces: the run folder, observers, readers, and the protection of secrets.

```python
with RunFolder("runs/1", runner.recorder, episode_id="1"):
    runner.run_turn(...)
for envelope in open_episode("runs/1"):
    print(envelope.seq, envelope.body)
```
"""

from grue.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
