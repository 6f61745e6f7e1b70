"""Imports an engine's own Python out of its wheel, without its GPU packages.

The cache managers are plain Python, but what they import on the way is not:
torch, kernels, configuration classes. Only the modules named in SOURCES are the
engine's own code; its other modules and those of STOOD_IN are stand-ins
whose names are empty classes. Those may stand in annotations, in isinstance and
as base classes; what a manager would really need from one of them fails at its
first use. Nothing of an engine is stored here.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCES = {
    "vllm": frozenset(
        {
            "vllm.distributed.kv_events",
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.events",
            "vllm.multimodal.utils",
            "vllm.utils.hashing",
            "vllm.utils.math_utils",
            "vllm.v1.core.block_pool",
            "vllm.v1.core.kv_cache_coordinator",
            "vllm.v1.core.kv_cache_manager",
            "vllm.v1.core.kv_cache_metrics",
            "vllm.v1.core.kv_cache_utils",
            "vllm.v1.core.sched.scheduler",
            "vllm.v1.core.single_type_kv_cache_manager",
            "vllm.v1.kv_cache_interface",
            "vllm.v1.kv_cache_spec_registry",
            "vllm.v1.kv_offload.base",
            "vllm.v1.kv_offload.cpu.manager",
            "vllm.v1.kv_offload.cpu.policies.base",
            "vllm.v1.kv_offload.cpu.policies.factory",
            "vllm.v1.kv_offload.cpu.policies.lru",
            "vllm.v1.request",
            "vllm.v1.utils",
        }
    ),
    "sglang": frozenset(
        {
            "sglang.srt.disaggregation.kv_events",
            "sglang.srt.mem_cache.base_prefix_cache",
            "sglang.srt.mem_cache.cache_init_params",
            "sglang.srt.mem_cache.events",
            "sglang.srt.mem_cache.evict_policy",
            "sglang.srt.mem_cache.radix_cache",
            "sglang.srt.mem_cache.utils",
        }
    ),
}
STOOD_IN = ("torch", "numpy", "psutil", "uvloop", "cbor2", "PIL", "pydantic")


def _page_names(key: Any, prior: bytes | None, page_size: int) -> list[str]:
    """Chained SHA-256 of a key's pages: SGLang's is C++, compiled at its first use."""
    units = list(key)
    names: list[str] = []
    digest = prior or b""
    for start in range(0, len(units), page_size):
        digest = hashlib.sha256(digest + repr(units[start : start + page_size]).encode()).digest()
        names.append(digest.hex())
    return names


def _logger(name: str) -> logging.Logger:
    """A logger that has vLLM's further method."""
    logger = logging.getLogger(name)
    vars(logger)["warning_once"] = logger.debug
    return logger


# Names that are called or compared on the path taken here.
PROVIDED: dict[str, dict[str, Any]] = {
    "pydantic": {"BaseModel": object},
    "sglang.srt.mem_cache.cpp_utils.native_hash": {"get_native_hash": _page_names},
    "sglang.srt.utils.common": {"ceil_align": lambda size, unit: -(-size // unit) * unit},
    "torch": {"empty": lambda *_shape, **_options: (), "device": str},
    "vllm": {"envs": types.SimpleNamespace(VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=True)},
    "vllm.config.kv_events": {"KVEventsConfig": types.SimpleNamespace},
    "vllm.logger": {"init_logger": _logger},
    "vllm.platforms": {
        "current_platform": types.SimpleNamespace(register_custom_kv_cache_specs=lambda _config: None)
    },
    "vllm.utils.import_utils": {"LazyLoader": lambda _name, _scope, module: importlib.import_module(module)},
    "vllm.v1.kv_offload.cpu.common": {"CPULoadStoreSpec": list},
    "vllm.v1.structured_output.request": {
        "StructuredOutputRequest": types.SimpleNamespace(from_sampling_params=lambda _params: None)
    },
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda tokens, _embeds: len(tokens)},
}


class Wheel:
    """One release of an engine, as a file."""

    def __init__(self, path: Path):
        self.path = path
        self.engine, self.version = path.name.split("-")[:2]

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"

    def install(self) -> None:
        """Makes the engine's packages importable in this process."""
        sys.meta_path.insert(0, _Finder(self))


class _StandInType(type):
    """An empty class that may be subscripted and has any attribute."""

    def __getitem__(cls, _parameters: Any) -> type:
        return cls

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__name__}.{name}")


def _stand_in(name: str) -> type:
    return _StandInType(name, (), {"__module__": "stand-in"})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the engine's own modules in the wheel, stand-ins elsewhere."""

    def __init__(self, wheel: Wheel):
        self._archive = zipfile.ZipFile(wheel.path)
        self._sources = SOURCES[wheel.engine]
        self._roots = {wheel.engine, *STOOD_IN}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self._roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ in self._sources:
            file = module.__name__.replace(".", "/") + ".py"
            exec(compile(self._archive.read(file), file, "exec"), vars(module))
            return
        known = PROVIDED.get(module.__name__, {})
        vars(module).update(known)

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if f"{module.__name__}.{name}" in self._sources:
                return importlib.import_module(f"{module.__name__}.{name}")
            made = _stand_in(name)
            setattr(module, name, made)
            return made

        vars(module)["__getattr__"] = missing
