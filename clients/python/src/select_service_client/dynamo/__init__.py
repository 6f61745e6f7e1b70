"""Dynamo's Python class SelectionService, served by select-service over HTTP.

Whoever imports it from `dynamo.llm`, as Ray Serve LLM does, gets it if

- SELECT_SERVICE_DYNAMO_URL is in the environment when Python starts, where this
  package is installed; or
- install() was called in the process, for example by Ray's
  worker_process_setup_hook.
"""

from __future__ import annotations

import os
from typing import Any

from ._errors import DynamoException, SelectionServiceError
from ._service import URL, SelectionService, defaults

__all__ = ["URL", "DynamoException", "SelectionService", "SelectionServiceError", "install"]


def install(url: str | None = None, **options: Any) -> None:
    """Makes `from dynamo.llm import SelectionService` give the class of this package.

    url is that of the service, by default the environment's
    SELECT_SERVICE_DYNAMO_URL; options are defaults for SelectionService's own
    keywords. Where Dynamo is installed as well, the rest of it is left alone.
    """
    url = url or os.environ.get(URL)
    if not url:
        raise ValueError(f"install() needs the service's URL: give it, or set {URL}")
    defaults.update(options, url=url)
    from _select_service_dynamo import register

    register()
