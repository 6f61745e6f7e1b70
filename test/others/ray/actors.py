"""The Ray actors: engines that publish KV events, ingresses, and Ray's own tracker."""

import asyncio
import os
import struct
import threading
import time
from types import SimpleNamespace

import msgpack
import ray
import zmq

BLOCK = 16  # tokens


@ray.remote(num_cpus=0)
class Engine:
    """A worker as vLLM is one: a PUB socket with KV events and a ROUTER that replays them."""

    def __init__(self, name):
        self._name = name
        self._sent = []
        context = zmq.Context.instance()
        self._live, self._replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self._ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self._live, self._replay)]
        self._served = 0
        threading.Thread(target=self._serve_replays, daemon=True).start()

    def endpoints(self):
        return [f"tcp://127.0.0.1:{port}" for port in self._ports]

    def cache(self, tokens):
        """Announces that the prompt's complete blocks are in the cache."""
        blocks = len(tokens) // BLOCK
        # An engine's own hashes: any numbers that name a prefix.
        names = [hash((self._name, *tokens[: BLOCK * (i + 1)])) & (2**64 - 1) for i in range(blocks)]
        event = ["BlockStored", names, None, tokens[: BLOCK * blocks], BLOCK, None, "GPU"]
        payload = msgpack.packb([time.time(), [event], 0])
        sequence = struct.pack(">q", len(self._sent))
        self._sent.append((sequence, payload))
        self._live.send_multipart([b"", sequence, payload])

    def generate(self, tokens):
        """Stands for the request itself."""
        self._served += 1
        return self._name

    def _serve_replays(self):
        while True:
            client, _, start = self._replay.recv_multipart()
            for sequence, payload in self._sent[struct.unpack(">q", start)[0] :]:
                self._replay.send_multipart([client, b"", sequence, payload])
            self._replay.send_multipart([client, b"", struct.pack(">q", -1), b""])


@ray.remote(num_cpus=0)
class Ingress:
    """One that routes requests, with a client of its own."""

    def __init__(self, url, dialect):
        from select_service_client import Client

        self._client = Client(url, dialect=dialect)

    def ask(self, method, *args, **request):
        return getattr(self._client, method)(*args, **request)

    def two_steps(self, engines, tokens, booking):
        """The documented flow: /select, the worker, /reservations, prefill_complete, DELETE."""
        chosen = self._client.select(token_ids=tokens)
        self._client.create_reservation(
            reservation_id=booking,
            worker_id=chosen["worker_id"],
            dp_rank=chosen["dp_rank"],
            token_ids=tokens,
            effective_prefill_tokens=chosen["effective_prefill_tokens"],
        )
        loaded = self._client.loads()
        served_by = ray.get(engines[chosen["worker_id"]].generate.remote(tokens))
        self._client.prefill_complete(booking)
        decoding = self._client.loads()
        self._client.free(booking)
        return chosen, served_by, loaded, decoding

    def book(self, prompts):
        """Books one prompt after the other and keeps them all: ids and workers."""
        booked = [self._client.select_and_reserve(token_ids=prompt) for prompt in prompts]
        return [(self._client.booking_id(b), b["worker_id"]) for b in booked]

    def finish(self, bookings):
        for booking in bookings:
            self._client.prefill_complete(booking)
            self._client.post_output_block(booking)
            self._client.free(booking)

    def hold(self, prompt):
        """Holds a lease for as long as this process lives."""
        self._lease = self._client.lease(token_ids=prompt, lease_seconds=1)
        return self._lease.__enter__().worker_id


@ray.remote(num_cpus=0)
class Tracker:
    """An ingress replica of Ray Serve LLM, as far as its KVTokenTracker goes.

    The tracker and everything that it imports are Ray's own. Stand-ins are what
    would tell it of replicas, the controller of Ray Serve: arrivals and losses
    are told by the test.
    """

    def __init__(self):
        from ray.llm._internal.serve.routing_policies.kv_aware import kv_token_tracker as module

        module.LongPollClient = lambda *_, **__: None
        module.ray = SimpleNamespace(get_actor=lambda *_, **__: None)
        self._module = module

    async def begin(self, rank, url, peers):
        """Starts as another ingress replica, on the service of a URL."""
        os.environ["SELECT_SERVICE_DYNAMO_URL"] = url
        self._tracker = self._module.KVTokenTracker(serve_deployment_id="engines", ingress_replica_rank=rank)
        self._tracker.start_reservation_broadcast(SimpleNamespace(broadcast=self._note))
        self._peers = peers

    def _note(self, method, batch):
        async def results_async(**_):
            return await asyncio.gather(*(getattr(peer, method).remote(batch) for peer in self._peers))

        return SimpleNamespace(results_async=results_async)

    def made_by(self):
        """Where the class comes from that the tracker uses."""
        return type(self._tracker._svc).__module__

    def worker_id(self, unique_id):
        return self._module.get_worker_id(unique_id)

    async def replicas(self, engines):
        """The running replicas: unique id and [events, replay] endpoints of each."""
        self._tracker._on_deployment_targets(
            SimpleNamespace(
                running_replicas=[
                    SimpleNamespace(
                        replica_id=SimpleNamespace(unique_id=id_, to_full_id_str=lambda id_=id_: f"app#engines#{id_}"),
                        routing_stats={
                            "kv_event_metadata": {
                                "endpoint": events,
                                "replay_endpoint": replay,
                                "block_size": BLOCK,
                                "max_num_batched_tokens": 8192,
                                "dp_rank": 0,
                            }
                        },
                    )
                    for id_, (events, replay) in engines.items()
                ]
            )
        )
        while self._tracker._pending_tasks:
            await asyncio.gather(*self._tracker._pending_tasks)

    async def select(self, request_id, tokens, workers, expected=None):
        return await self._tracker.select_worker(request_id, tokens, workers, expected)

    async def on_reservations_created(self, batch):
        await self._tracker.on_reservations_created(batch)

    async def told(self):
        """Until all bookings of this ingress were broadcast."""
        await self._tracker._reservation_forwarder.flush()

    async def applied(self):
        """Until all that others broadcast has been booked."""
        await self._tracker._reservation_updates.join()

    async def events(self, events):
        """Lifecycle events of the engines; gives the hooks that fail, which Ray only logs."""
        failed = []
        for name, args in events:
            try:
                await getattr(self._tracker, name)(*args)
            except Exception as error:  # noqa: BLE001
                failed.append(f"{name}: {error}")
        return failed

    def requests(self):
        return list(self._tracker._requests)
