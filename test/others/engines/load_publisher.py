"""SGLang's publisher of its load, straight out of the wheel."""

import inspect
import json
import sys
import types
import zipfile
from pathlib import Path

import publishers

MODULE = "sglang/srt/managers/scheduler_components/load_publisher.py"
COUNTS = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_used_tokens",
    "max_total_num_tokens",
    "num_waiting_uncached_tokens",
    "num_total_tokens",
    "max_running_requests",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
)


class Address:
    """What the publisher uses of the engine's NetworkAddress."""

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, port = text.rsplit(":", 1)
        return cls(host, int(port))

    def to_tcp(self) -> str:
        return f"tcp://{self.host}:{self.port}"


class LoadPublishers:
    """The publishers of all ranks of one engine: rank r binds base + r."""

    def __init__(self, wheel: Path, events: types.ModuleType, ranks: int, base: int):
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read(MODULE)
        self._parallel = types.SimpleNamespace(
            num_dp_ranks=ranks, dp_size=ranks, pp_rank=0, attn_tp_rank=0, attn_cp_rank=0, attn_dp_size=ranks, attn_dp_rank=0, dp_rank=0
        )
        config = types.SimpleNamespace(publisher="zmq", endpoint=f"tcp://*:{base - ranks}", replay_endpoint=None)
        events.get_parallel, events.NetworkAddress = self._get_parallel, Address
        events.KVEventsConfig.from_cli = classmethod(lambda cls, text: config)
        stand_ins = {
            "sglang.srt.disaggregation.kv_events": vars(events),
            "sglang.srt.runtime_context": {"get_parallel": self._get_parallel},
            "sglang.srt.utils.network": {"NetworkAddress": Address, "is_zmq_endpoint_ipv6": lambda endpoint: False},
        }
        module = types.ModuleType("sglang_load_publisher")
        sys.modules[module.__name__] = module  # msgspec looks a struct's module up
        with publishers.stand_ins(stand_ins):
            exec(compile(source, MODULE, "exec"), module.__dict__)
        # Releases before 0.5.23 send the first four counts alone.
        self.says_more = "max_running_requests" in module.LoadStat.__struct_fields__
        arguments = {"kv_events_config": json.dumps({}) + " ", "load_publish_endpoint": f"tcp://*:{base}", "publish_interval": 1}
        if "ps" in inspect.signature(module.SchedulerLoadPublisher).parameters:  # before 0.5.23
            arguments["ps"] = self._parallel
        self._of = []
        for rank in range(ranks):
            self._parallel.attn_dp_rank = rank
            self._of.append(module.SchedulerLoadPublisher(**arguments))
            assert self._of[rank].enable

    def _get_parallel(self):
        return self._parallel

    def publish(self, rank: int, **counts: int) -> None:
        load = types.SimpleNamespace(**dict.fromkeys(COUNTS, 0) | counts)
        self._of[rank].publish_load_stat(lambda: load, force=True)

    def close(self) -> None:
        for publisher in self._of:
            publisher.close()
