"""A Flask service that runs one turn for each HTTP request. No server process outlives the request.

A turn is one blocking call, so it fits into an ordinary view. If the turn fails, the client gets a 502 with
the reason.
"""

import os

from flask import Flask, Response, jsonify, request

from grue import LlmSettings, MCPError, Runner, TurnRequest

app = Flask(__name__)
llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])


@app.post("/urgent")
def urgent() -> tuple[Response, int]:
    """Say whether a mail is urgent."""
    turn = TurnRequest(
        system="Is this mail urgent?", user=request.get_json()["text"], answer=bool, turn_timeout_s=300
    )
    try:
        with Runner(llm=llm) as runner:
            return jsonify(urgent=runner.run_turn(turn).response), 200
    except MCPError as error:
        return jsonify(error=str(error)), 502


if __name__ == "__main__":
    answer = app.test_client().post("/urgent", json={"text": "The house is on fire."})
    print(answer.status_code, answer.get_json())
