"""What runs on Ray Serve. This is the one module that imports Ray.

A replica is an actor with the engine and the application of `sscc serve` in its process; one of several ranks starts
the others as that command does. A gateway has the port, by Serve's proxy, and reaches
the replicas through a handle, whose router knows which of them has what of a prompt. What Serve does itself: starting
replicas and starting them again, checking their health, how many there are, and letting one that ends finish.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from ray.util import get_node_ip_address
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sscc.compiler.tools.commands.serve import opened
from sscc.compiler.tools.fleet.fleet_options import FleetOptions, Plan, replica_options
from sscc.ir.errors import RankError
from sscc.runtime.serving.fleet.affinity import Affinity
from sscc.runtime.serving.fleet.channel import Address, ChannelLost, Inbox, Outbox
from sscc.runtime.serving.fleet.forwarded_requests import Call, Headers, Part, Start, answered
from sscc.runtime.serving.fleet.gateway import SEED_BYTES, FleetErrors, Gateway, ReplicaLost
from sscc.runtime.serving.fleet.listening import Listening
from sscc.runtime.serving.server.freed_memory import keep_little
from sscc.runtime.serving.server.hosts import Hosts

_log = logging.getLogger("sscc.fleet")

LOST = (RayActorError, WorkerCrashedError, ObjectLostError, ReplicaUnavailableError, ChannelLost)
"""With what is said that an actor, or what it had sent, is gone."""
STATE_SECONDS = 5.0
HEALTH_SECONDS = 5.0
BACKOFF_SECONDS = 0.5
"""Longest time after which a request that waits for a replica looks for one again."""
_ROUTED_AT_ONCE = 4096  # requests of one gateway


def application(options: FleetOptions, plan: Plan) -> serve.Application:
    """What Serve is to run, by a deployment file's options and what they mean for the artifact."""
    replicas = options.replicas
    scale: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most > replicas.least:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=replicas.least, max_replicas=replicas.most, target_ongoing_requests=plan.slots
            )
        }
    router = RequestRouterConfig(
        request_router_class=PrefixRouter,
        request_router_kwargs={"imbalance": plan.imbalance},
        max_backoff_s=BACKOFF_SECONDS,
    )
    deployed = (
        serve.deployment(Replica)
        .options(
            **scale,
            max_ongoing_requests=plan.ongoing,
            max_queued_requests=plan.queue,
            ray_actor_options={"num_cpus": plan.threads},
            request_router_config=router,
            graceful_shutdown_timeout_s=plan.drain_seconds,
            health_check_period_s=HEALTH_SECONDS,
        )
        .bind(plan.words)
    )
    listens = None if options.port is None else {"host": options.address, "port": options.port}
    gateway = serve.deployment(Front).options(
        num_replicas=options.gateways,
        user_config=listens,
        max_ongoing_requests=_ROUTED_AT_ONCE,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=plan.drain_seconds,
    )
    bound: serve.Application = gateway.bind(deployed, plan, options.attempts, options.address)
    return bound


class Replica:
    """The engine and the application of `sscc serve`.

    Args:
        words: the command line.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        keep_little()
        self._outbox = Outbox()
        serving = replica_options(words)
        limits = replace(serving.limits, max_body=serving.limits.max_body + SEED_BYTES)
        keys = serving.server.keys()
        self._open = ExitStack()
        self._served = self._open.enter_context(opened(replace(serving, limits=limits), keys))
        self._headers: Headers = ((b"authorization", f"Bearer {keys[0]}".encode()),) if keys else ()
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, call: Call, to: Address) -> tuple[list[Part], int]:
        """What the application answers: the parts of an answer that is no stream; of a stream the number of parts,
        which go to the gateway as they come.

        The process of an engine that has failed ends, with which Serve knows it at once as one to be replaced: its
        refusals would come quicker than any health check. Where a rank was lost, what was under way ends so too, as it
        may well succeed elsewhere; what an engine itself has failed of is answered.
        """
        if self._served.engine.failure is not None:
            self._end_process()
        whole: list[Part] = []
        streams, sent = False, 0
        async with aclosing(answered(self._served.app, call)) as parts:
            async for part in parts:
                if isinstance(self._served.engine.failure, RankError):
                    self._end_process()
                streams = streams or (isinstance(part, Start) and part.streams)
                if streams:
                    await self._outbox.send(to, part)
                    sent += 1
                else:
                    whole.append(part)
        return whole, sent

    async def state(self) -> tuple[str, dict[str, Any]]:
        """The replica's name, and what `Pool.states` tells of it."""
        metrics, status = await self._get("/metrics"), await self._get("/v1/status")
        return self._name, {"metrics": metrics.decode(), "status": json.loads(status)}

    def _end_process(self) -> None:
        _log.error("the replica ends: %s", self._served.engine.failure)
        os._exit(1)  # its ranks end with it

    async def _get(self, path: str) -> bytes:
        parts = [part async for part in answered(self._served.app, Call("GET", path, b"", self._headers))]
        return b"".join(part for part in parts if isinstance(part, bytes))

    def check_health(self) -> None:
        """Raises what ended the engine: Serve then starts another replica."""
        if (failure := self._served.engine.failure) is not None:
            raise RuntimeError(f"the engine has failed: {failure}")

    def __del__(self) -> None:
        """Serve calls this when every request is finished, or its time is over."""
        if hasattr(self, "_open"):
            self._open.close()


class RayPool:
    """The replicas, through Serve's handle; what streams comes past it, into an inbox."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._inbox = Inbox(get_node_ip_address())

    async def call(self, call: Call) -> AsyncGenerator[Part, None]:
        """See `sscc.runtime.serving.fleet.gateway.Pool`."""
        async with self._inbox.incoming() as incoming:
            answer = self._handle.answer.remote(call, incoming.address)
            ended: asyncio.Future[tuple[list[Part], int]] = asyncio.ensure_future(answer)
            ended.add_done_callback(lambda _: incoming.wake())
            try:
                while (part := await incoming.next()) is not None:
                    yield part
                whole, sent = ended.result()
                for part in whole or await incoming.rest(sent):
                    yield part
            except LOST as error:
                raise ReplicaLost from error
            except BackPressureError as error:
                raise FleetErrors.QUEUE_FULL(requests=error.num_queued_requests) from None
            except DeploymentUnavailableError:
                raise FleetErrors.REPLICAS_CANNOT_START() from None
            finally:
                if not ended.done():
                    answer.cancel()
                    ended.cancel()

    async def states(self) -> Mapping[str, Mapping[str, Any]]:
        """See `sscc.runtime.serving.fleet.gateway.Pool`."""
        told = self._handle.broadcast("state")
        try:
            states = await told.results_async(timeout_s=STATE_SECONDS, return_exceptions=True)
        except TimeoutError:
            return {}
        return dict(sorted(state for state in states if not isinstance(state, BaseException)))


class Front:
    """A gateway.

    Args:
        replicas: the deployment of `Replica`.
        plan: of theirs.
        attempts: see `Gateway`.
        host: the address that it listens on, where it has a port of its own.
    """

    def __init__(self, replicas: DeploymentHandle, plan: Plan, attempts: int, host: str) -> None:
        self._gateway = Gateway(
            RayPool(replicas),
            by_prompt=plan.by_prompt,
            attempts=attempts,
            max_body=plan.max_body,
            api_keys=replica_options(plan.words).server.keys(),
            name=serve.get_replica_context().replica_id.unique_id,
            hosts=Hosts((host,), plan.hosts, plan.origins),
            root_path=plan.root_path,
        )
        self._drain_seconds = plan.drain_seconds
        self._listening: Listening | None = None

    async def __call__(self, request: Request) -> Response:
        """A request that one of Serve's proxies has."""
        return _Through(self._gateway)

    async def reconfigure(self, listens: Mapping[str, Any]) -> None:
        """Listens on a port of its own. Serve calls this before there is anything to do, and where it has changed."""
        await self._stop()
        self._listening = await Listening.start(self._gateway, listens["host"], listens["port"], self._drain_seconds)

    def check_health(self) -> None:
        """Raises where the port is lost: Serve then starts another gateway."""
        if self._listening is not None and self._listening.ended:
            raise RuntimeError("the gateway listens no more")

    async def __del__(self) -> None:
        """Serve calls this when the gateway is to end, and waits as long as a request may go on."""
        await self._stop()

    async def _stop(self) -> None:
        listening = getattr(self, "_listening", None)
        if listening is not None:
            await listening.stop()


class _Through(Response):
    """An answer that an ASGI application makes. Serve calls it with the request's own scope."""

    def __init__(self, application: ASGIApp) -> None:
        super().__init__()
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


class PrefixRouter(RequestRouter):
    """Chooses the replica that has the longest beginning of a prompt, unless it has much more to do than others."""

    def initialize_state(self, imbalance: int) -> None:
        """Called by Serve with what `application` says."""
        self._affinity: Affinity[ReplicaID] = Affinity(imbalance)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter`."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where all are full, it waits a moment
        by_id = {one.replica_id: one for one in candidate_replicas}
        loads = {one: self.replica_queue_len_cache.get(one) or 0 for one in by_id}
        ranks = self._affinity.ranked(_keys(pending_request), loads)
        return [[by_id[one] for one in rank] for rank in ranks]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """See `RequestRouter`."""
        self._affinity.note(_keys(pending_request), replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See `RequestRouter`."""
        super().update_replicas(replicas)
        self._affinity.keep_only(set(self.curr_replicas))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """See `RequestRouter`."""
        super().on_replica_actor_died(replica_id)
        self._affinity.keep_only(set(self.curr_replicas))


def _keys(pending: PendingRequest | None) -> tuple[bytes, ...]:
    arguments = () if pending is None else pending.args
    return next((one.keys for one in arguments if isinstance(one, Call)), ())
