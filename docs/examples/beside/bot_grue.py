"""Talk to a model that has the tools of two MCP servers: python bot_grue.py. With a trace."""

import os
import sys

from grue import LlmSettings, Runner, StdioServer

llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
servers = {
    name: StdioServer(command=sys.executable, args=(os.environ[f"{name.upper()}_SERVER"],))
    for name in ("notes", "clock")
}
with Runner(llm=llm, servers=servers, trace="runs", keep="sessions") as runner:
    talk = runner.conversation("You keep my notes. Use the tools.")
    for line in sys.stdin:
        print(talk.ask(line.strip()).response, flush=True)
