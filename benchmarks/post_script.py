"""The shortest script that asks a model: it imports httpx and sends one POST request.

python benchmarks/post_script.py BASE_URL MODEL
"""

import sys

import httpx

base_url, model = sys.argv[1:3]
body = {"model": model, "messages": [{"role": "user", "content": "What do you do?"}], "tools": []}
print(httpx.post(f"{base_url}/chat/completions", json=body, timeout=60.0).status_code)
