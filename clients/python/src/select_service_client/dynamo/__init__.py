"""Dynamo's Python class SelectionService, served by select-service over HTTP.

Whoever imports it from `dynamo.llm`, as Ray Serve LLM does, gets it if

- SELECT_SERVICE_DYNAMO_URL is in the environment when Python starts, where this
  package is installed; or
- install() was called in the process, for example by Ray's
  worker_process_setup_hook.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._settings import URL, defaults

if TYPE_CHECKING:
    from ._errors import DynamoException, SelectionServiceError
    from ._service import SelectionService

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


def __getattr__(name: str) -> Any:
    # Not before they are used: the exceptions load Dynamo's library where it is
    # installed, which install() must not do in every process of a Ray job.
    if name == "SelectionService":
        from . import _service

        return _service.SelectionService
    if name in ("DynamoException", "SelectionServiceError"):
        from . import _errors

        return getattr(_errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
