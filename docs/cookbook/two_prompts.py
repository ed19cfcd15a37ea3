"""One call asks the same questions with two prompts. A table says which prompt is better.

It also says whether the difference may be chance. Few cases prove little: for hundreds of cases, and for
confidence intervals, use a fleet (`Fleet.map`, `Fleet.compare`).
"""

import os

from grue import LlmSettings, Runner
from grue.fleet import compare_prompts

CASES = [("My order never came!", True), ("Thank you so much.", False), ("I want my money back.", True)]
PROMPTS = {
    "plain": "Is this mail a complaint?",
    "careful": "A complaint says that something is wrong or wants money back. Is this mail a complaint?",
}

llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, trace="prompts") as runner:
    found = compare_prompts(runner, PROMPTS, CASES, concurrency=3, progress=True)
print(found)
print(f"better: {found.best}")
