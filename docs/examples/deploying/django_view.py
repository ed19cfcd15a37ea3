"""A Django view, in an ordinary synchronous worker."""

import json
import os
from dataclasses import asdict, dataclass

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from grue import LlmSettings, MCPError, Runner, TurnRequest


@dataclass
class Answer:
    """The model's answer, and the body of the response."""

    text: str
    sure: bool


@require_POST
def answer(request: HttpRequest) -> JsonResponse:
    """Run one turn. Nothing of it is alive when the view returns, so a worker may be stopped at any time."""
    question = json.loads(request.body)["text"]
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    turn = TurnRequest(system="Answer.", user=question, answer=Answer, turn_timeout_s=30)
    try:
        with Runner(llm=llm) as runner:
            return JsonResponse(asdict(runner.run_turn(turn).response))
    except MCPError as error:
        return JsonResponse({"error": str(error)}, status=502)


urlpatterns = [path("answer", answer)]
