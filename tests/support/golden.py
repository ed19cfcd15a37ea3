"""Compare a value with a golden file. `GRUE_UPDATE_GOLDEN=1` writes the file again; review it afterwards."""

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden"


def check_golden(name: str, value: object) -> None:
    """Assert that `value` equals the content of the golden file `name`."""
    path = FOLDER / name
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get("GRUE_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert json.loads(text) == json.loads(path.read_text(encoding="utf-8"))
