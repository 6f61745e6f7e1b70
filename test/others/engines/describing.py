"""What engines say of themselves, by their own code, behind an HTTP server of ours.

SGLang's description of its sockets is computed from its arguments by functions that need
nothing else, so they are taken out of the wheel. vLLM's is what its publisher says of itself.
"""

import __future__

import ast
import contextlib
import http.server
import json
import sys
import threading
import types
import typing
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The definitions that SGLang's description consists of, by module. Releases before 0.5.23 have no num_dp_ranks_of: dp_size
# is their number of ranks.
SGLANG = {
    "sglang/srt/utils/network.py": ["_is_ipv6", "_wrap", "_parse_port", "NetworkAddress"],
    "sglang/srt/disaggregation/kv_events.py": [
        "LOAD_TOPIC",
        "_BIND_WILDCARD_HOSTS",
        "parse_tcp_port",
        "parse_advertisable_tcp",
        "parse_bindable_tcp",
        "resolve_load_pub_range",
        "KVEventsConfig",
    ],
    "sglang/srt/arg_groups/overrides.py": ["kv_event_block_size_of"],
    "sglang/srt/runtime_context.py": ["num_dp_ranks_of", "describe_kv_events_publisher"],
}


class _Model:
    """Stands in for pydantic's base class: the members of a JSON object, over the defaults."""

    @classmethod
    def model_validate_json(cls, text: str):
        made = cls()
        vars(made).update(json.loads(text))
        return made


def sglang_kv_events(wheel: Path, **arguments) -> dict | None:
    """What SGLang says of its sockets at /server_info, given its arguments."""
    space = {
        "dataclass": dataclass,
        "BaseModel": _Model,
        "ipaddress": __import__("ipaddress"),
        "socket": __import__("socket"),
        "resolving_view": lambda args: args,
        **{name: getattr(typing, name) for name in ("Any", "Callable", "Literal", "Optional", "Tuple", "Union")},
    }
    with zipfile.ZipFile(wheel) as archive:
        for module, names in SGLANG.items():
            tree = ast.parse(archive.read(module))
            tree.body = [node for node in tree.body if _named(node) in names]
            missing = set(names) - {"num_dp_ranks_of"} - {_named(node) for node in tree.body}
            assert not missing, f"{module} has no {missing}"
            exec(compile(tree, module, "exec", __future__.annotations.compiler_flag), space)
    imported = {"sglang.srt.arg_groups.overrides", "sglang.srt.disaggregation.kv_events"}
    parents = {name.rsplit(".", depth)[0] for name in imported for depth in range(1, name.count(".") + 1)}
    added = {name: types.ModuleType(name) for name in imported | parents}
    for name in imported:
        vars(added[name]).update(space)
    shadowed = {name: sys.modules[name] for name in added if name in sys.modules}
    sys.modules.update(added)
    try:
        return space["describe_kv_events_publisher"](types.SimpleNamespace(**arguments))
    finally:
        for name in added:
            del sys.modules[name]
        sys.modules.update(shadowed)


def _named(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return getattr(node.targets[0], "id", "")
    return getattr(node, "name", "")


@contextlib.contextmanager
def serving(answers: dict[str, dict | str]) -> Iterator[str]:
    """An HTTP server with these answers by path; others are 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

        def log_message(self, *_args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
