"""A FastAPI service: uvicorn fastapi_app:app."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from grue import LlmSettings, MCPError, Runner, TurnRequest


class Question(BaseModel):
    """The body of a request."""

    text: str


class Answer(BaseModel):
    """The model's answer, and the body of the response."""

    text: str
    sure: bool


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Make the runner with the service, and close it with the service."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    with Runner(llm=llm) as app.state.runner:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/answer")
async def answer(question: Question, client: Request) -> Answer:
    """Run one turn. Requests run side by side; a client that goes away cancels its turn."""
    runner: Runner = app.state.runner
    request = TurnRequest(system="Answer.", user=question.text, answer=Answer, turn_timeout_s=30)
    problem = "the client has gone away"
    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_gone, client, group.cancel_scope)
        try:
            return (await runner.run_turn_async(request)).response
        except MCPError as error:
            problem = str(error)
        finally:
            group.cancel_scope.cancel()
    raise HTTPException(502, problem)


async def cancel_when_gone(client: Request, scope: anyio.CancelScope) -> None:
    """FastAPI goes on with a handler whose client has gone away, so wait for that here."""
    while (await client.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
