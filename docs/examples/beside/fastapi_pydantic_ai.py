"""A FastAPI service: uvicorn fastapi_pydantic_ai:app."""

import asyncio
import os

from fastapi import FastAPI, HTTPException
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
async def answer(question: Question) -> Answer:
    """Run one turn."""
    try:
        async with asyncio.timeout(30):
            return (await agent.run(question.text)).output
    except (AgentRunError, TimeoutError) as error:
        raise HTTPException(502, str(error)) from error
