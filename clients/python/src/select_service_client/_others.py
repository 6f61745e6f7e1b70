"""The routes of the slot tracker and of Mooncake's Conductor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import Core
from ._operation import AsyncCaller, Caller, SyncCaller, operation
from ._plan import Plan
from ._routes import filters
from ._types import Question, RankLoad, Registration, SlotsBooking, SlotsLoad, SlotsWorker, Unregistration

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SlotsRoutes(Caller):
    """The slot tracker, for those who choose workers themselves.

    model_name is needed everywhere; tenant is the tenant or routing group.
    """

    @operation
    def register(self, **worker: Unpack[SlotsWorker]) -> Plan[None]:
        """Registers a worker with its ranks."""
        core = self._core
        yield from core.call(core.request("POST", "/slots/register", core.names(worker)), safe=False)

    @operation
    def unregister(self, **worker: Unpack[SlotsWorker]) -> Plan[None]:
        """Removes a worker with its requests."""
        core = self._core
        yield from core.call(core.request("POST", "/slots/unregister", core.names(worker)), safe=False)

    @operation
    def workers(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[list[SlotsWorker]]:
        """Lists the workers of both contracts."""
        core = self._core
        query = filters(core, model_name, tenant)
        return core.call(core.request("GET", "/slots/workers", query=query))

    @operation
    def add(self, **request: Unpack[SlotsBooking]) -> Plan[None]:
        """Books a request on a rank."""
        core = self._core
        yield from core.call(core.request("POST", "/slots/add", core.names(request)), safe=False)

    @operation
    def prefill_complete(self, model_name: str, request_id: str, *, tenant: str | None = None) -> Plan[None]:
        """Ends the prefill load of a request."""
        yield from _of_request(self._core, "/slots/prefill_complete", model_name, request_id, tenant)

    @operation
    def free(self, model_name: str, request_id: str, *, tenant: str | None = None) -> Plan[None]:
        """Ends a request; an unknown one does nothing."""
        yield from _of_request(self._core, "/slots/free", model_name, request_id, tenant)

    @operation
    def loads(self, *, model_name: str | None = None, tenant: str | None = None) -> Plan[list[SlotsLoad]]:
        """The load of every rank."""
        core = self._core
        query = filters(core, model_name, tenant)
        return core.call(core.request("GET", "/slots/loads", query=query))

    @operation
    def potential_loads(
        self,
        model_name: str,
        sequence_hashes: list[int],
        *,
        new_isl_tokens: int = 0,
        tenant: str | None = None,
    ) -> Plan[list[RankLoad]]:
        """The load that every rank would have with a prompt."""
        core = self._core
        body: dict[str, Any] = {
            "model_name": model_name,
            "sequence_hashes": sequence_hashes,
            "new_isl_tokens": new_isl_tokens,
        }
        if tenant is not None:
            body[core.tenant] = tenant
        return core.call(core.request("POST", "/slots/potential_loads", core.names(body)))

    @operation
    def health(self) -> Plan[None]:
        """Returns if the process lives."""
        yield from self._core.call(self._core.request("GET", "/slots/health"))

    @operation
    def peers(self) -> Plan[list[str]]:
        """The endpoints of the replicas, sorted."""
        return self._core.call(self._core.request("GET", "/slots/peers"))

    @operation
    def register_peer(self, url: str) -> Plan[None]:
        """Adds a replica."""
        yield from self._core.call(self._core.request("POST", "/slots/register_peer", {"url": url}))

    @operation
    def deregister_peer(self, url: str) -> Plan[None]:
        """Takes a replica away."""
        yield from self._core.call(self._core.request("POST", "/slots/deregister_peer", {"url": url}))


class ConductorRoutes(Caller):
    """Mooncake Conductor's indexer API."""

    @operation
    def register(self, **registration: Unpack[Registration]) -> Plan[dict[str, Any]]:
        """Registers a publisher of KV events; the same again changes nothing."""
        return self._conductor("/register", registration)

    @operation
    def unregister(self, **which: Unpack[Unregistration]) -> Plan[list[str]]:
        """Removes publishers with their blocks and names them."""
        answer = yield from self._conductor("/unregister", which, safe=False)
        removed: list[str] = answer["removed_instances"]
        return removed

    @operation
    def query(self, **question: Unpack[Question]) -> Plan[dict[str, dict[str, Any]]]:
        """The hits of a prompt by tenant and instance, by its token_ids."""
        return self._conductor("/query", question)

    @operation
    def query_by_hash(self, **question: Unpack[Question]) -> Plan[dict[str, dict[str, Any]]]:
        """The same by the prompt's seq_hashes."""
        return self._conductor("/query_by_hash", question)

    @operation
    def diagnose(self, **question: Unpack[Question]) -> Plan[dict[str, Any]]:
        """Tells block by block why a prompt matches or not."""
        return self._conductor("/diagnose", question)

    @operation
    def services(self) -> Plan[dict[str, Any]]:
        """The publishers, how their streams are doing, and what is indexed."""
        core = self._core
        return core.call(core.request("GET", "/conductor/services", prefixed=False))

    @operation
    def health(self) -> Plan[None]:
        """Returns if the process lives."""
        core = self._core
        yield from core.call(core.request("GET", "/conductor/health", prefixed=False))

    def _conductor(self, path: str, body: Any, *, safe: bool = True) -> Plan[Any]:
        # Its names are those of Mooncake, in both dialects.
        core = self._core
        request = core.request("POST", "/conductor" + path, body, prefixed=False)
        return core.call(request, safe=safe)


class Slots(SlotsRoutes, SyncCaller):
    """The slot tracker; calls block."""


class AsyncSlots(SlotsRoutes, AsyncCaller):
    """The slot tracker; calls are awaited."""


class Conductor(ConductorRoutes, SyncCaller):
    """Mooncake's indexer API; calls block."""


class AsyncConductor(ConductorRoutes, AsyncCaller):
    """Mooncake's indexer API; calls are awaited."""


def _of_request(core: Core, path: str, model_name: str, request_id: str, tenant: str | None) -> Plan[None]:
    body: dict[str, Any] = {"model_name": model_name, "request_id": request_id}
    if tenant is not None:
        body[core.tenant] = tenant
    yield from core.call(core.request("POST", path, body))
