"""Digests of JSON values, for comparing definitions and arguments without keeping them; pure."""

import hashlib
import json


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value's canonical form, as `sha256:…`.

    In the canonical form keys are sorted, there is no white space, and everything beyond ASCII is escaped.
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"
