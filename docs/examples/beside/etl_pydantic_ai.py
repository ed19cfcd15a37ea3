"""Classify the messages of a CSV file, eight at once: python etl_pydantic_ai.py messages.csv labels.csv."""

import asyncio
import csv
import os
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Label(BaseModel):
    """What the model has to say about a message."""

    topic: Literal["bug", "question", "praise"]
    urgent: bool


async def classify(source: str, target: str) -> int:
    """Write a label for each row, and return how many rows failed."""
    provider = OpenAIProvider(base_url=os.environ["LLM_URL"], api_key=os.environ["GRUE_API_KEY"])
    model = OpenAIChatModel(os.environ["LLM_MODEL"], provider=provider)
    agent = Agent(model, output_type=Label, instructions="Classify.")
    places = asyncio.Semaphore(8)

    async def labelled(text: str) -> Label | Exception:
        async with places:
            try:
                return (await agent.run(text)).output
            except Exception as error:
                return error

    with open(source, newline="") as read:
        rows = list(csv.DictReader(read))
    labels = await asyncio.gather(*(labelled(row["text"]) for row in rows))
    with open(target, "w", newline="") as written:
        table = csv.writer(written)
        for row, label in zip(rows, labels):
            if isinstance(label, Exception):
                table.writerow([row["id"], "", "", label])
            else:
                table.writerow([row["id"], label.topic, label.urgent, ""])
    return sum(isinstance(label, Exception) for label in labels)


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(classify(*sys.argv[1:3])) else 0)
