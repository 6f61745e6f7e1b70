"""The routes of the selection service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _json
from ._core import Core
from ._errors import SelectServiceError, error_of
from ._operation import Caller, operation
from ._plan import Answer, Exchange, Plan
from ._types import (
    BookRequest,
    DiagnoseRequest,
    Difference,
    Explanation,
    LoadReport,
    OverlapScores,
    Pair,
    PairRequest,
    PromptRequest,
    RankLoad,
    Readiness,
    Reservation,
    ReserveRequest,
    ScopeLoads,
    Selection,
    SelectRequest,
    Thresholds,
    TokenizedPrompt,
    TokenizeRequest,
    Worker,
    WorkerRequest,
    WorkerSettings,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

POLICY_CLASS = "x-dynamo-meta-policy-class"


def split_headers(request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Takes out of a request what is sent as a header."""
    body = dict(request)
    policy_class = body.pop("policy_class", None)
    return body, {} if policy_class is None else {POLICY_CLASS: policy_class}


def filters(core: Core, model_name: str | None, tenant: str | None) -> dict[str, str | None]:
    """The query of a list; None takes all names."""
    return {"model_name": model_name, core.tenant: tenant}


class WorkerRoutes(Caller):
    """The catalog, and whether the service is up."""

    @operation
    def put_worker(self, **worker: Unpack[WorkerRequest]) -> Plan[Worker]:
        """Registers a worker or replaces its record."""
        core = self._core
        return core.call(core.request("POST", "/workers", core.names(worker)))

    @operation
    def patch_worker(self, worker_id: int, **settings: Unpack[WorkerSettings]) -> Plan[Worker]:
        """Changes members of a worker's record; None leaves one as it is."""
        core = self._core
        path = f"/workers/{_json.worker_id(worker_id)}"
        return core.call(core.request("PATCH", path, core.names(settings)))

    @operation
    def delete_worker(self, worker_id: int) -> Plan[Worker]:
        """Removes a worker with its blocks and reservations, and returns its last record."""
        core = self._core
        path = f"/workers/{_json.worker_id(worker_id)}"
        return core.call(core.request("DELETE", path), safe=False)

    @operation
    def drain_worker(self, worker_id: int, *, deadline_seconds: float | None = None) -> Plan[Worker]:
        """Gives a worker no new work; what it has goes on.

        A worker that was registered over the API is removed once it is empty, and at the latest at the
        deadline. A repeated call can bring the deadline forward, but not put it off.
        """
        core = self._core
        path = f"/workers/{_json.worker_id(worker_id)}/drain"
        body = {} if deadline_seconds is None else {"deadline_seconds": deadline_seconds}
        return core.call(core.request("POST", path, body))

    @operation
    def undrain_worker(self, worker_id: int) -> Plan[Worker]:
        """Takes drain_worker back."""
        core = self._core
        path = f"/workers/{_json.worker_id(worker_id)}/drain"
        return core.call(core.request("DELETE", path))

    @operation
    def report_load(self, worker_id: int, ranks: Mapping[int, LoadReport]) -> Plan[None]:
        """Says what load the ranks of a worker's engine have.

        Send it again and again: a report is used for a few seconds. Ranks that are left
        out keep their report.
        """
        core = self._core
        path = f"/workers/{_json.worker_id(worker_id)}/load"
        return _status(core, path, {"ranks": _json.by_rank(ranks, "ranks")}, method="PUT")

    @operation
    def list_workers(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[list[Worker]]:
        """Lists workers by model, tenant and id."""
        core = self._core
        query = filters(core, model_name, tenant)
        return core.call(core.request("GET", "/workers", query=query))

    @operation
    def reconcile_workers(
        self,
        workers: Iterable[WorkerRequest | Mapping[str, Any]],
        *,
        model_name: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> Plan[Difference]:
        """Makes the catalog, or that of one scope, exactly these workers, in one step.

        A dry run changes nothing.
        """
        core = self._core
        body: dict[str, Any] = {"workers": [core.names(worker) for worker in workers]}
        scope = filters(core, model_name, tenant)
        body.update((name, value) for name, value in scope.items() if value is not None)
        query = {"dry_run": "true"} if dry_run else None
        return core.call(core.request("PUT", "/workers", body, query=query))

    @operation
    def health(self) -> Plan[None]:
        """Returns if the process lives."""
        yield from self._core.call(self._core.request("GET", "/health"))

    @operation
    def ready(self) -> Plan[Readiness]:
        """Whether a worker can be selected; not being ready is an answer, no error."""
        return readiness(self._core)

    @operation
    def metrics(self) -> Plan[str]:
        """The service's metrics, in Prometheus' text format."""
        return _text(self._core, "/metrics")

    @operation
    def openapi(self) -> Plan[str]:
        """The service's own description, as YAML."""
        return _text(self._core, "/openapi.yaml")


class SelectionRoutes(Caller):
    """Choosing workers, and the loads and overlaps that decide."""

    @operation
    def select(self, **request: Unpack[SelectRequest]) -> Plan[Selection]:
        """Chooses a worker without booking.

        In the 1.6 dialect a selection_id keeps the choice: create_reservation with
        this id alone books it.
        """
        core = self._core
        body, headers = split_headers(core.names(request))
        return core.call(core.request("POST", "/select", body, headers=headers))

    @operation
    def select_batch(
        self, requests: Iterable[SelectRequest | Mapping[str, Any]], *, policy_class: str | None = None
    ) -> Plan[list[Selection | SelectServiceError]]:
        """Is select for up to 1,024 requests in one call.

        They are served in their order. Each has its answer, or the error that select
        would raise; none is tried again by itself. policy_class is that of all.
        """
        core = self._core
        named = [core.names(request) for request in requests]
        if any("policy_class" in request for request in named):
            raise ValueError("policy_class is that of the whole batch, not of a request in it")
        body = {"requests": [{"select": request} for request in named]}
        headers = {} if policy_class is None else {POLICY_CLASS: policy_class}
        answer = yield from core.call(core.request("POST", "/select_batch", body, headers=headers))
        return [
            one["body"] if one["status"] == 200 else error_of(one["status"], _json.encode(one["body"]))
            for one in answer["results"]
        ]

    @operation
    def select_and_reserve(self, **request: Unpack[BookRequest]) -> Plan[Selection]:
        """Chooses a worker and books the prompt's load on it in one step.

        Whoever calls this has to free the booking; lease() does it by itself.
        """
        core = self._core
        body, headers = split_headers(core.with_id(request))
        return _first(core.book("/select_and_reserve", body, headers))

    @operation
    def select_pair(self, **request: Unpack[PairRequest]) -> Plan[Pair]:
        """Chooses a worker that prefills and one that decodes, and books both, or neither.

        prefill_complete, output_block, renew and free with the id of the pair act on
        both bookings. Whoever calls this has to free the pair.
        """
        core = self._core
        body, headers = split_headers(core.with_id(request))
        return _first(core.book("/select_pair", body, headers))

    @operation
    def explain(self, **request: Unpack[SelectRequest]) -> Plan[Explanation]:
        """What select would choose, and why; nothing is booked, kept or counted."""
        core = self._core
        body, headers = split_headers(core.names(request))
        return core.call(core.request("POST", "/explain", body, headers=headers))

    @operation
    def tokenize(self, **request: Unpack[TokenizeRequest]) -> Plan[TokenizedPrompt]:
        """The token ids of a request's prompt, for select and explain."""
        core = self._core
        return core.call(core.request("POST", "/tokenize", core.names(request)))

    @operation
    def decisions(
        self,
        *,
        limit: int | None = None,
        reasons: bool = True,
        time: str | None = None,
        model_name: str | None = None,
        tenant: str | None = None,
    ) -> Plan[list[dict[str, Any]]]:
        """Recent choices with what became of them, the newest first; without reasons, in brief.

        time asks for the one that was made then.
        """
        core = self._core
        query: dict[str, Any] = filters(core, model_name, tenant) | {"limit": limit, "time": time}
        if not reasons:
            query["reasons"] = "false"
        return core.call(core.request("GET", "/decisions", query=query))

    @operation
    def sessions(
        self,
        *,
        worker_id: int | None = None,
        limit: int | None = None,
        after: str | None = None,
        model_name: str | None = None,
        tenant: str | None = None,
    ) -> Plan[dict[str, Any]]:
        """A page of the sessions that are kept, with their homes, those that were seen last first.

        after is the ``next`` of the page before.
        """
        core = self._core
        query: dict[str, Any] = filters(core, model_name, tenant)
        query |= {"worker_id": worker_id, "limit": limit, "after": after}
        return core.call(core.request("GET", "/sessions", query=query))

    @operation
    def fairness(
        self,
        *,
        by: str | None = None,
        limit: int | None = None,
        model_name: str | None = None,
        tenant: str | None = None,
    ) -> Plan[dict[str, Any]]:
        """The greatest consumers of engine seconds, where tenants take turns.

        by is ``tenant`` (the default) or ``program``.
        """
        core = self._core
        query: dict[str, Any] = filters(core, model_name, tenant) | {"by": by, "limit": limit}
        return core.call(core.request("GET", "/fairness", query=query))

    @operation
    def policies(
        self, *, model_name: str | None = None, tenant: str | None = None
    ) -> Plan[list[dict[str, Any]]]:
        """Which policy decides in each scope, and what it has learned."""
        core = self._core
        query = filters(core, model_name, tenant)
        return core.call(core.request("GET", "/policies", query=query))

    @operation
    def set_policies(self, worker_selection: Mapping[str, Any]) -> Plan[dict[str, Any]]:
        """Make all scopes choose by a section ``worker_selection`` of a policy file, on all
        replicas of a fleet that shares its settings."""
        core = self._core
        body = {"worker_selection": dict(worker_selection)}
        return core.call(core.request("PUT", "/policies", body))

    @operation
    def clear_policies(self) -> Plan[dict[str, Any]]:
        """Make all scopes choose by the policies of the configuration again."""
        core = self._core
        return core.call(core.request("DELETE", "/policies"))

    @operation
    def fleet(
        self, *, since: str | None = None, model_name: str | None = None, tenant: str | None = None
    ) -> Plan[dict[str, Any]]:
        """Every rank at a glance; since the version of an earlier answer, what has changed."""
        core = self._core
        query = filters(core, model_name, tenant) | {"since": since}
        return core.call(core.request("GET", "/fleet", query=query))

    @operation
    def history(
        self,
        *,
        worker_id: int | None = None,
        seconds: int | None = None,
        model_name: str | None = None,
        tenant: str | None = None,
    ) -> Plan[dict[str, Any]]:
        """The last hour of the scopes, or of one worker's ranks."""
        core = self._core
        query: dict[str, Any] = filters(core, model_name, tenant)
        query |= {"worker_id": worker_id, "seconds": seconds}
        return core.call(core.request("GET", "/history", query=query))

    @operation
    def prefixes(
        self, *, limit: int | None = None, model_name: str | None = None, tenant: str | None = None
    ) -> Plan[dict[str, Any]]:
        """The prefixes of a scope with the most blocks times holders, as a tree."""
        core = self._core
        query: dict[str, Any] = filters(core, model_name, tenant) | {"limit": limit}
        return core.call(core.request("GET", "/index/prefixes", query=query))

    @operation
    def doctor(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[dict[str, Any]]:
        """What is wrong, in sentences, and what to do about it."""
        core = self._core
        return core.call(core.request("GET", "/doctor", query=filters(core, model_name, tenant)))

    @operation
    def replicas(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[dict[str, Any]]:
        """What is known of the other replicas."""
        core = self._core
        return core.call(core.request("GET", "/replicas", query=filters(core, model_name, tenant)))

    @operation
    def replica_status(self) -> Plan[dict[str, Any]]:
        """What the replica tells the others."""
        core = self._core
        return core.call(core.request("GET", "/replica_sync/status", prefixed=False))

    @operation
    def kubernetes(self) -> Plan[dict[str, Any]]:
        """What discovery in Kubernetes knows."""
        core = self._core
        return core.call(core.request("GET", "/kubernetes", prefixed=False))

    @operation
    def overlap_scores(self, **request: Unpack[PromptRequest]) -> Plan[OverlapScores]:
        """How much of a prompt every rank has cached."""
        core = self._core
        return core.call(core.request("POST", "/overlap_scores", core.names(request)))

    @operation
    def potential_loads(self, **request: Unpack[PromptRequest]) -> Plan[list[RankLoad]]:
        """The load that every rank would have with the prompt on it."""
        core = self._core
        return core.call(core.request("POST", "/potential_loads", core.names(request)))

    @operation
    def loads(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[list[ScopeLoads]]:
        """The active load of every rank."""
        core = self._core
        query = filters(core, model_name, tenant)
        return core.call(core.request("GET", "/loads", query=query))

    @operation
    def diagnose(self, **request: Unpack[DiagnoseRequest]) -> Plan[dict[str, Any]]:
        """Tells block by block why a prompt matches or not."""
        core = self._core
        return core.call(core.request("POST", "/diagnose", core.names(request)))

    @operation
    def dump(self) -> Plan[dict[str, Any]]:
        """The whole index at once; dump_stream() gives it as it comes."""
        return self._core.call(self._core.request("GET", "/dump"))


class ReservationRoutes(Caller):
    """The life of a booking. Calls about one id are made in the order of their calling."""

    @operation
    def create_reservation(self, **request: Unpack[ReserveRequest]) -> Plan[Reservation]:
        """Books a prompt's load on a rank of the caller's choice.

        In the 1.6 dialect without worker_id: what select kept under the id.
        """
        core = self._core
        return _first(core.book("/reservations", core.with_id(request)))

    @operation
    def prefill_complete(self, booking: str) -> Plan[None]:
        """Takes the booking's prefill tokens off the load: the first token is there."""
        yield from self._core.prefill_complete(booking)

    @operation
    def output_block(self, booking: str, *, decay_fraction: float | None = None) -> Plan[bool]:
        """Adds a generated block. False: it was freed, which is no error."""
        return self._core.output_block(booking, decay_fraction)

    @operation
    def renew(self, booking: str) -> Plan[None]:
        """Starts the booking's lease anew."""
        yield from self._core.renew(booking)

    @operation
    def free(self, booking: str) -> Plan[None]:
        """Ends the booking. A cancelled call frees it all the same."""
        yield from self._core.free(booking)

    def post_output_block(self, booking: str, *, decay_fraction: float | None = None) -> None:
        """Adds a generated block in the background: it neither waits nor raises."""
        self._core.post_output_block(booking, decay_fraction)

    def booking_id(self, answer: Selection | Reservation) -> str:
        """The id of a booking, under whichever name the dialect has it."""
        value: str = answer[self._core.booking_id]  # type: ignore[literal-required]
        return value


class OverloadRoutes(Caller):
    """The thresholds above which selections are refused."""

    @operation
    def busy_thresholds(self) -> Plan[list[Thresholds]]:
        """The thresholds of every model with a worker."""
        answer = yield from self._core.call(self._core.request("GET", "/busy_threshold"))
        value: list[Thresholds] = answer["thresholds"]
        return value

    @operation
    def set_busy_threshold(self, **thresholds: Unpack[Thresholds]) -> Plan[Thresholds]:
        """Sets what is given, leaves what is absent or None, and returns all of the model's."""
        core = self._core
        return core.call(core.request("POST", "/busy_threshold", thresholds))

    @operation
    def clear_busy_threshold(self, model: str, threshold: str | None = None) -> Plan[Thresholds]:
        """Unsets a threshold of a model, or all."""
        core = self._core
        query = {"model": model, "threshold": threshold}
        return core.call(core.request("DELETE", "/busy_threshold", query=query))


class ReplicaRoutes(Caller):
    """The replicas that reservations are shared with."""

    @operation
    def peers(self) -> Plan[list[str]]:
        """The endpoints of the replicas, sorted."""
        return self._core.call(self._core.request("GET", "/replica_sync/peers"))

    @operation
    def register_peer(self, endpoint: str) -> Plan[None]:
        """Adds a replica."""
        yield from _status(self._core, "/replica_sync/register_peer", {"endpoint": endpoint})

    @operation
    def deregister_peer(self, endpoint: str) -> Plan[None]:
        """Takes a replica away."""
        yield from _status(self._core, "/replica_sync/deregister_peer", {"endpoint": endpoint})

    @operation
    def snapshot(self, *, after: str | None = None, limit: int | None = None) -> Plan[dict[str, Any]]:
        """One page of the live reservations; its `next` is the next page's after."""
        core = self._core
        query = {"after": after, "limit": limit}
        return core.call(core.request("GET", "/replica_sync/snapshot", query=query))


def readiness(core: Core) -> Plan[Readiness]:
    """The answer of /ready, of either status."""
    request = core.request("GET", "/ready")
    answer: Answer = yield from Exchange(core.options.retry, request, safe=True).run()
    if answer.status not in (200, 503):
        raise error_of(answer.status, answer.content)
    value = _json.decode(answer.content)
    if not isinstance(value, dict) or "ready" not in value:
        raise error_of(answer.status, answer.content)
    return value  # type: ignore[return-value]


def _first(plan: Plan[tuple[Any, bool]]) -> Plan[Any]:
    return (yield from plan)[0]


def _status(core: Core, path: str, body: Mapping[str, Any], *, method: str = "POST") -> Plan[None]:
    yield from core.call(core.request(method, path, body))


def _text(core: Core, path: str) -> Plan[str]:
    request = core.request("GET", path, prefixed=False)
    answer: Answer = yield from Exchange(core.options.retry, request, safe=True).run()
    if answer.status != 200:
        raise error_of(answer.status, answer.content)
    return answer.content.decode()
