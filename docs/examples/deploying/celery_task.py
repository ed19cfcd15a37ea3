"""A Celery task: celery -A celery_task worker."""

import os

from celery import Celery

from grue import LlmSettings, Runner, TurnRequest
from grue.errors import LLMError

app = Celery("answers", broker=os.environ.get("BROKER_URL", "memory://"))


@app.task(autoretry_for=(LLMError,), retry_backoff=True, max_retries=3)
def answer(question: str) -> str:
    """Run one turn. A failure of the endpoint puts the task back into the queue."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    with Runner(llm=llm) as runner:
        turn = TurnRequest(system="Answer briefly.", user=question, turn_timeout_s=60)
        return runner.run_turn(turn).response
