"""What requests and answers hold, for type checkers: at run time they are dicts.

Answers have the names of the client's dialect: `tenant_id` and `reservation_id`
in 1.3, `routing_group` and `selection_id` in 1.6. Requests take either; the
client sends those of its dialect.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import Required
else:
    from typing_extensions import Required

Dialect = Literal["1.3", "1.6"]


class Scope(TypedDict, total=False):
    """A model for one tenant; both names are "default" when absent."""

    model_name: str
    tenant_id: str
    routing_group: str


class LoadMetrics(TypedDict, total=False):
    """Where an engine's metrics are, and how often they are read."""

    url: str
    interval_seconds: float


class LoadReport(TypedDict, total=False):
    """What an engine says of one rank; what is left out or None is unknown."""

    running: int | None
    waiting: int | None
    kv_tokens_used: int | None
    kv_tokens_total: int | None
    waiting_uncached_tokens: int | None
    max_running: int | None


class WorkerSettings(TypedDict, total=False):
    """The members of a worker's record that PATCH can change."""

    # What describes the engine is declared by go generate ./api, from the rows of catalog.Fields.
    endpoint: str | None
    block_size: int | None
    kv_events_endpoint: str | None
    kv_events_endpoints: Mapping[int, str] | Mapping[str, str] | None
    replay_endpoint: str | None
    replay_endpoints: Mapping[int, str] | Mapping[str, str] | None
    kv_event_copies: Literal["count", "set"] | None
    kv_event_rank: Literal["batch", "stream"] | None
    kv_events: bool | None
    load_endpoint: str | None
    load_endpoints: Mapping[int, str] | Mapping[str, str] | None
    load_metrics: LoadMetrics | None
    attention_chunk_size: int | None
    max_model_len: int | None
    data_parallel_start_rank: int | None
    data_parallel_size: int | None
    max_num_batched_tokens: int | None
    total_kv_blocks: int | None
    stable_routing_id: str | None
    is_eagle: bool | None
    role: Literal["prefill", "decode", "encode"] | None
    revision: str | None
    rank_endpoints: Mapping[int, str] | Mapping[str, str] | None
    rank_header: Literal["local", "global", "none"] | None
    prefill_rank_header: bool | None
    adapters: Iterable[str] | None
    taints: Iterable[str] | None
    topology_domains: Mapping[str, str] | None
    kv_transfer_domain: str | None
    kv_transfer_enforcement: Literal["required", "preferred"] | None
    kv_transfer_preferred_weight: float | None
    router_hint_worker_type: str | None
    router_hint_source_control_endpoints: Mapping[int, str] | Mapping[str, str] | None
    kv_event_source_mode: str | None
    kv_peer_endpoint: str | None
    kv_hints_in_body: bool | None


class WorkerRequest(Scope, WorkerSettings, total=False):
    """A worker as it is registered. With describe its engine fills in what it leaves out."""

    worker_id: Required[int]
    describe: bool | Literal["vllm", "sglang", "trtllm"] | None


# What a worker's engine says of itself. "from" says where members of the record come from: a
# path of the engine, "default", or "events": the block size of its KV events.
Described = TypedDict(
    "Described",
    {
        "engine": Literal["vllm", "sglang", "trtllm"],
        "version": str,
        "total_kv_blocks": int,
        "max_num_batched_tokens": int,
        "from": Required[dict[str, str]],
    },
    total=False,
)


class WorkerSource(TypedDict, total=False):
    """Where a worker's record comes from; what follows kind is set of discovered workers only."""

    kind: Required[Literal["file", "kubernetes"]]
    namespace: str
    pod: str
    uid: str
    pool: str


class WorkerDrain(TypedDict, total=False):
    """An operator drains the worker; deadline is when it is removed at the latest."""

    deadline: str


class Worker(TypedDict, total=False):
    """A worker's record as the service has it; unset members are null."""

    # What describes the engine is declared by go generate ./api, from the rows of catalog.Fields.
    worker_id: Required[int]
    model_name: Required[str]
    tenant_id: str
    routing_group: str
    lifecycle: Required[Literal["incomplete", "schedulable", "draining", "unschedulable"]]
    not_schedulable_reasons: list[str]
    source: WorkerSource
    drain: WorkerDrain
    replicas_behind: list[str]
    kv_events_block_size: int
    model_aliases: list[str]
    describe: Literal[True, "vllm", "sglang", "trtllm"]
    described: Described
    endpoint: str | None
    block_size: int | None
    kv_events_endpoint: str | None
    kv_events_endpoints: dict[str, str]
    replay_endpoint: str | None
    replay_endpoints: dict[str, str]
    kv_event_copies: Literal["count", "set"]
    kv_event_rank: Literal["batch", "stream"]
    kv_events: bool
    load_endpoint: str
    load_endpoints: dict[str, str]
    load_metrics: LoadMetrics
    attention_chunk_size: int
    max_model_len: int
    data_parallel_start_rank: int | None
    data_parallel_size: int | None
    max_num_batched_tokens: int | None
    total_kv_blocks: int | None
    stable_routing_id: str | None
    is_eagle: bool | None
    role: Literal["prefill", "decode", "encode"]
    revision: str
    rank_endpoints: dict[str, str]
    rank_header: Literal["local", "global", "none"]
    prefill_rank_header: bool
    adapters: list[str]
    taints: list[str]
    topology_domains: dict[str, str]
    kv_transfer_domain: str | None
    kv_transfer_enforcement: str | None
    kv_transfer_preferred_weight: float | None
    router_hint_worker_type: str
    router_hint_source_control_endpoints: dict[str, str]
    kv_event_source_mode: str
    kv_peer_endpoint: str
    kv_hints_in_body: bool


class Difference(TypedDict, total=False):
    """What reconciling the catalog changed: ids in ascending order.

    replicas_behind names the live replicas of a fleet that did not have the change when it was answered.
    """

    added: Required[list[int]]
    changed: Required[list[int]]
    removed: Required[list[int]]
    unchanged: Required[int]
    replicas_behind: list[str]


class Readiness(TypedDict, total=False):
    """Whether a worker can be selected."""

    ready: Required[bool]
    schedulable_workers: Required[int]
    workers: Required[list[Worker]]
    recovery: dict[str, Any]


class PromptRequest(Scope, total=False):
    """A prompt: tokens, or hashes with isl_tokens."""

    token_ids: Sequence[int]
    block_hashes: Sequence[int]
    sequence_hashes: Sequence[int]
    isl_tokens: int
    mm_routing_info: Mapping[str, Any]
    block_mm_infos: Sequence[Mapping[str, Any] | None]
    lora_name: str | None
    cache_salt: str | None
    is_eagle: bool | None
    router_config_override: Mapping[str, Any]


class Rank(TypedDict):
    """One data-parallel rank of a worker."""

    worker_id: int
    dp_rank: int


class ChosenRank(Rank, total=False):
    """The rank that was chosen, and how the engine's frontend is told it."""

    rank_header: Literal["local", "global", "none"]
    local_dp_rank: int


class _Target(TypedDict):
    worker_id: int


class AffinityTarget(_Target, total=False):
    """A rank, or all ranks of a worker."""

    dp_rank: int | None


class SessionContext(TypedDict, total=False):
    """A session of an agent."""

    session_id: Required[str]
    # The session that has started this one.
    parent_session_id: str | None
    # True: the session ends with the reservation of this request.
    session_final: bool | None
    input_trigger: Literal["user_message", "tool_result", "other"] | None
    # Headers of the agent; they say the two above where these are missing.
    agent_headers: Mapping[str, Iterable[str]] | None


class SelectRequest(PromptRequest, total=False):
    """A prompt to choose a worker for, and the conditions."""

    selection_id: str
    reservation_id: str
    expected_output_tokens: int | None
    priority_jump: float
    strict_priority: int
    # The program that pays for the engine time, where the wait queue is fair.
    fairness_id: str
    # Within how many milliseconds the first token and the whole answer are wanted.
    ttft_target_ms: float | None
    deadline_ms: float | None
    on_miss: Literal["place", "refuse"]
    pinned_worker: Rank
    affinity_target: AffinityTarget
    allowed_worker_ids: Iterable[int]
    routing_constraints: Mapping[str, Any]
    session_id: str
    session_context: SessionContext
    advisory: bool
    explain: bool
    # Sent as a header: the class of the wait queue.
    policy_class: str


class TokenizeRequest(Scope, total=False):
    """A request, as a client sends it to an engine, whose prompt is wanted in token ids."""

    request: Required[Mapping[str, Any]]


class BookRequest(SelectRequest, total=False):
    """The same, with the terms of a booking."""

    lease_seconds: float | None
    if_exists: Literal["error", "return"]


class PairSide(TypedDict, total=False):
    """Where one side of a pair may go."""

    pinned_worker: Rank | None
    allowed_worker_ids: Iterable[int] | None
    routing_constraints: Mapping[str, Any]


class Conditional(TypedDict, total=False):
    """Bounds below which the worker that decodes prefills, too."""

    max_uncached_tokens: int | None
    max_uncached_share: float | None


class PairRequest(PromptRequest, total=False):
    """A prompt to place on a worker that prefills and one that decodes."""

    selection_id: str | None
    reservation_id: str | None
    session_id: str | None
    expected_output_tokens: int | None
    priority_jump: float | None
    strict_priority: int | None
    policy_class: str
    explain: bool
    prefill: PairSide | None
    decode: PairSide | None
    conditional: Conditional | None
    lease_seconds: float | None
    if_exists: Literal["error", "return"]


class ReserveRequest(PromptRequest, total=False):
    """A prompt to book on a rank of the caller's choice, or a kept selection."""

    selection_id: str
    reservation_id: str
    worker_id: int
    dp_rank: int
    expected_output_tokens: int | None
    effective_prefill_tokens: int | None
    track_prefill_tokens: bool | None
    lease_seconds: float | None
    if_exists: Literal["error", "return"]


class LeaseRequest(BookRequest, total=False):
    """What lease() takes: with worker_id a booking there, otherwise a selection."""

    worker_id: int
    dp_rank: int
    effective_prefill_tokens: int | None
    track_prefill_tokens: bool | None


class TokenizedPrompt(TypedDict, total=False):
    """A prompt in token ids, with what else decides about the blocks that it shares."""

    model_name: Required[str]
    tenant_id: str
    routing_group: str
    lora_name: Required[str | None]
    cache_salt: Required[str | None]
    max_model_len: Required[int | None]
    token_ids: Required[list[int]]


class Explanation(TypedDict, total=False):
    """Why a rank was chosen, or why none can be."""

    model_name: str
    tenant_id: str
    routing_group: str
    policy: Required[str]
    policy_type: str
    decided_by: Required[str]
    isl_tokens: Required[int]
    block_size: Required[int]
    temperature: Required[float]
    chosen: Required[ChosenRank | None]
    refusal: str
    session: str
    group: str
    home: dict[str, int]
    moved_because: str
    candidates: Required[list[dict[str, Any]]]
    excluded: Required[list[dict[str, Any]]]
    shadows: Required[list[dict[str, Any]]]


class Overlap(TypedDict):
    """Cached tokens of the prompt on the chosen worker, cumulative by tier."""

    longest_matched: int
    gpu: int
    dp: dict[str, int]
    cpu: int
    disk: int


class Reservation(TypedDict, total=False):
    """A booking."""

    selection_id: str
    reservation_id: str
    model_name: Required[str]
    tenant_id: str
    routing_group: str
    worker_id: Required[int]
    dp_rank: Required[int]
    endpoint: Required[str]
    lease_seconds: float


class KVHintAction(TypedDict):
    """What a KV hint asks for: a `kv.fetch` has block_hashes and source_control_endpoint."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class KVHint(TypedDict):
    """A message for the engine of a booking: where it can fetch KV caches from."""

    protocol_version: str
    message_id: str
    actions: list[KVHintAction]


class Selection(Reservation, total=False):
    """A chosen worker.

    A booking that the replica knows from another one only has the members of
    Reservation alone when it is asked for again.
    """

    block_size: int
    overlap: Overlap
    effective_prefill_tokens: int
    sequence_hashes: list[int]
    isl_tokens: int
    track_prefill_tokens: bool
    potential_decode_blocks: int
    decode_busy: bool
    worker_load: dict[str, Any]
    kv_hint: KVHint
    explanation: Explanation
    rank_header: Literal["local", "global", "none"]
    local_dp_rank: int


class Pair(TypedDict, total=False):
    """Two workers for one request; calls with the id of the pair act on both bookings."""

    reservation_id: str
    selection_id: str
    reason: Literal["pair", "cached", "short", "no_prefill_worker"]
    decode: Selection
    prefill: Selection | None
    lease_seconds: float


class ForeignLoad(TypedDict):
    """Load of a rank that is not booked."""

    requests: int
    prefill_tokens: int
    blocks: int


class RankLoad(TypedDict, total=False):
    """The load of a rank."""

    worker_id: Required[int]
    dp_rank: Required[int]
    potential_prefill_tokens: Required[int]
    potential_decode_blocks: Required[int]
    active_requests: Required[int]
    reported: dict[str, Any]
    foreign: ForeignLoad


class ScopeLoads(TypedDict, total=False):
    """The loads of a model for one tenant."""

    model_name: Required[str]
    tenant_id: str
    routing_group: str
    loads: Required[list[RankLoad]]
    pending_count: Required[int]
    pending_isl_tokens: Required[int]


class OverlapScores(TypedDict):
    """How much of a prompt every rank has cached, in blocks."""

    block_size: int
    num_blocks: int
    workers: list[dict[str, Any]]
    shared_cache: dict[str, Any]


class DiagnoseRequest(Scope, total=False):
    """A prompt to explain."""

    token_ids: Sequence[int]
    block_hashes: Sequence[int]
    lora_name: str
    cache_salt: str
    max_blocks: int


class Thresholds(TypedDict, total=False):
    """The thresholds above which a rank of the model is busy; None is unset."""

    model: Required[str]
    active_decode_blocks_threshold: float | None
    active_prefill_tokens_threshold: int | None
    active_prefill_tokens_threshold_frac: float | None


class SlotsWorker(Scope, total=False):
    """A worker of the slot tracker."""

    worker_id: Required[int]
    block_size: int
    dp_start: int
    dp_size: int


class SlotsBooking(Scope, total=False):
    """A request on a rank, for the slot tracker."""

    request_id: Required[str]
    worker_id: Required[int]
    dp_rank: Required[int]
    sequence_hashes: Required[Sequence[int]]
    new_isl_tokens: int


class SlotsLoad(TypedDict, total=False):
    """The load of a rank in the slot tracker's words."""

    model_name: Required[str]
    tenant_id: str
    routing_group: str
    worker_id: Required[int]
    dp_rank: Required[int]
    active_prefill_tokens: Required[int]
    active_decode_blocks: Required[int]


class Registration(TypedDict, total=False):
    """A publisher of KV events, for the Conductor."""

    endpoint: Required[str]
    type: Required[str]
    modelname: Required[str]
    instance_id: Required[str]
    block_size: Required[int]
    dp_rank: Required[int]
    replay_endpoint: str
    lora_name: str
    tenant_id: str
    additionalsalt: str
    hash_seed: int


class Unregistration(TypedDict, total=False):
    """Which publishers to remove: all that have every member given."""

    instance_id: Required[str]
    tenant_id: str
    type: str
    modelname: str
    lora_name: str
    block_size: int
    dp_rank: int
    additionalsalt: str
    endpoint: str


class Question(TypedDict, total=False):
    """A prompt to look up with the Conductor: tokens or rolling hashes."""

    model: Required[str]
    block_size: Required[int]
    token_ids: Sequence[int]
    seq_hashes: Sequence[int]
    lora_name: str
    tenant_id: str
    instance_id: str
    cache_salt: str
    max_blocks: int
