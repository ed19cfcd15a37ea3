"""Classify the messages of a CSV file, eight at once: python etl.py messages.csv labels.csv."""

import csv
import os
import sys
from typing import Literal

from msgspec import Struct

from grue import LlmSettings, Runner, TurnRequest


class Label(Struct):
    """What the model has to say about a message."""

    topic: Literal["bug", "question", "praise"]
    urgent: bool


def classify(llm: LlmSettings, source: str, target: str) -> int:
    """Write a label for each row, and return how many rows failed."""
    failed = 0
    with open(source, newline="") as read, open(target, "w", newline="") as written:
        rows = list(csv.DictReader(read))
        table = csv.writer(written)
        table.writerow(["id", "topic", "urgent", "error"])
        requests = (TurnRequest(system="Classify.", user=row["text"], answer=Label) for row in rows)
        with Runner(llm=llm, trace="runs") as runner:
            for row, item in zip(rows, runner.map(requests, concurrency=8, progress=True)):
                if item.outcome is None:
                    failed += 1
                    table.writerow([row["id"], "", "", item.error])
                else:
                    label = item.outcome.response
                    table.writerow([row["id"], label.topic, label.urgent, ""])
    return failed


if __name__ == "__main__":
    endpoint = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    if failed := classify(endpoint, *sys.argv[1:3]):
        sys.exit(f"{failed} rows have failed: see the column error, and grue trace show --failures")
