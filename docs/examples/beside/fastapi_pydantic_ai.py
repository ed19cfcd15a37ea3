"""A FastAPI service: uvicorn fastapi_pydantic_ai:app."""

import os

import anyio
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Question(BaseModel):
    """The body of a request."""

    text: str


class Answer(BaseModel):
    """The model's answer, and the body of the response."""

    text: str
    sure: bool


provider = OpenAIProvider(base_url=os.environ["LLM_URL"], api_key=os.environ["GRUE_API_KEY"])
model = OpenAIChatModel(os.environ["LLM_MODEL"], provider=provider)
agent = Agent(model, output_type=Answer, instructions="Answer.")
app = FastAPI()


@app.post("/answer")
async def answer(question: Question, client: Request) -> Answer:
    """Run one turn. Requests run side by side; a client that goes away cancels its turn."""
    problem = "the client has gone away"
    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_gone, client, group.cancel_scope)
        try:
            with anyio.fail_after(30):
                return (await agent.run(question.text)).output
        except (AgentRunError, TimeoutError) as error:
            problem = str(error)
        finally:
            group.cancel_scope.cancel()
    raise HTTPException(502, problem)


async def cancel_when_gone(client: Request, scope: anyio.CancelScope) -> None:
    """FastAPI goes on with a handler whose client has gone away, so wait for that here."""
    while (await client.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
