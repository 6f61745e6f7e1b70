"""Puts select-service behind `from dynamo.llm import SelectionService`.

A module of its own, so that Python's start, where select_service_client.pth
imports it if SELECT_SERVICE_DYNAMO_URL is set, costs no HTTP library.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The names that the modules get from select_service_client.dynamo. Where Dynamo
# is installed as well only its class is replaced: its exceptions stay, as ours
# are subclasses of them.
_NAMES = {
    "dynamo.llm": ("SelectionService",),
    "dynamo.llm.exceptions": ("DynamoException", "SelectionServiceError"),
}
_REPLACED = "SelectionService"


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "dynamo" and name not in _NAMES:
            return None
        spec = self._behind(name, path, target)
        if name == "dynamo":
            return spec or _package(name, _Loader(None, ()))
        if spec is None or spec.loader is None:
            return _package(name, _Loader(None, _NAMES[name]))
        spec.loader = _Loader(spec.loader, _NAMES[name])
        return spec

    def _behind(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """What the finders after this one find; those before it have been asked."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                return spec
        return None


class _Loader(Loader):
    """Runs the module's own loader, if it has one, and then sets our names."""

    def __init__(self, inner: Loader | None, names: Sequence[str]) -> None:
        self._inner, self._names = inner, names

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._inner is None else self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self._inner is not None:
            self._inner.exec_module(module)
        _set(module, self._names)


def register() -> None:
    """Makes the names importable, and replaces them where they are imported already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, names in _NAMES.items():
        if name in sys.modules:
            _set(sys.modules[name], names)


def _package(name: str, loader: Loader) -> ModuleSpec:
    return ModuleSpec(name, loader, is_package=True)


def _set(module: ModuleType, names: Sequence[str]) -> None:
    ours = [name for name in names if name == _REPLACED or not hasattr(module, name)]
    if ours:
        from select_service_client import dynamo

        for name in ours:
            setattr(module, name, getattr(dynamo, name))
