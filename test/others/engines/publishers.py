"""The KV event publishers of vLLM and SGLang, straight out of their wheels.

The engines themselves need a GPU and gigabytes of packages. Their publisher is
one module that needs little more than pyzmq and msgspec, so that module alone
is taken out of the wheel and run, with stand-ins for what it imports from the
rest of its engine. Nothing of it is stored here.
"""

import contextlib
import logging
import sys
import types
import typing
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec  # noqa: F401  imported before the stand-ins are in place
import zmq  # noqa: F401

MODULES = {
    "vllm": "vllm/distributed/kv_events.py",
    "sglang": "sglang/srt/disaggregation/kv_events.py",
}


def _unreachable(*_args, **_kwargs):
    raise AssertionError("the publisher calls a part of the engine that has only a stand-in")


# What the modules import, over all versions. The names that are only used off
# the path taken here raise when called.
STAND_INS: dict[str, dict[str, typing.Any]] = {
    "vllm.config.kv_events": {"KVEventsConfig": types.SimpleNamespace},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.utils.network_utils": {
        "get_ip": _unreachable,
        "get_tcp_uri": _unreachable,
        "is_valid_ipv6_address": _unreachable,
        "split_zmq_path": _unreachable,
    },
    "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int},
    "pydantic": {"BaseModel": object},
    "sglang.srt.runtime_context": {"get_parallel": _unreachable},
    "sglang.srt.utils.network": {"NetworkAddress": _unreachable},
}


@dataclass(frozen=True)
class Publisher:
    """A loaded publisher module and the release it came from."""

    engine: str  # "vllm" or "sglang"
    version: str
    module: types.ModuleType
    wheel: Path

    def __str__(self) -> str:
        return f"{self.engine}-{self.version}"

    def has_field(self, struct: str, field: str) -> bool:
        """Whether this release's event of that name has that field."""
        return field in getattr(self.module, struct).__struct_fields__

    def event(self, struct: str, **fields):
        """An event of this release; fields that it does not know are left out."""
        kind = getattr(self.module, struct)
        return kind(**{k: v for k, v in fields.items() if k in kind.__struct_fields__})


def load(wheel: Path) -> Publisher:
    """Loads the publisher of a vLLM or SGLang wheel."""
    engine, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(MODULES[engine])
    module = types.ModuleType(f"{engine}_{version}_kv_events".replace(".", "_"))
    sys.modules[module.__name__] = module  # msgspec looks a struct's module up
    with stand_ins(STAND_INS):
        exec(compile(source, f"{wheel}/{MODULES[engine]}", "exec"), module.__dict__)
    return Publisher(engine, version, module, wheel)


@contextlib.contextmanager
def stand_ins(modules: dict[str, dict[str, typing.Any]]):
    """Puts modules with the given content and their parent packages where imports look."""
    added = {}
    for name, content in modules.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            if path not in added:
                added[path] = types.ModuleType(path)
                added[path].__path__ = []  # a package: it may have submodules
        vars(added[name]).update(content)
    shadowed = {name: sys.modules[name] for name in added if name in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
        sys.modules.update(shadowed)
