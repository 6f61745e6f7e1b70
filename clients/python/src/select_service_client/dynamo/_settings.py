"""What the adapter is set up with, apart from all that it needs to run."""

from __future__ import annotations

from typing import Any

URL = "SELECT_SERVICE_DYNAMO_URL"

# What install() sets.
defaults: dict[str, Any] = {}
