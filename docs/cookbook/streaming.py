"""The model's text is printed as it arrives, without its reasoning.

If grue has to ask again, for instance because the connection broke, a delta has `restart`. The program then
begins a new line, and prints the reply from its beginning.
"""

import os
import sys

from grue import LlmSettings, Runner, TurnRequest
from grue.messages import TextDelta


def show(delta: TextDelta) -> None:
    """Print a piece of the answer; leave out the model's reasoning."""
    if delta.part == "content":
        sys.stdout.write("\n" if delta.restart else delta.text)
        sys.stdout.flush()


llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm) as runner:
    outcome = runner.run_turn(TurnRequest(system="Be brief.", user="What lives in the dark?", on_delta=show))
print(f"\n({outcome.usage.output_tokens} tokens)")
