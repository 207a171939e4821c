"""Replicas and gateways as Ray Serve deployments. Only this module imports Ray.

A replica is an actor with the engine and the application of `sscc serve` in its process. With several ranks, it is rank
0 and starts the others, as that command does. A gateway listens on a port of its own or behind Serve's proxies, and
calls the replicas through a handle, whose router prefers the replica that has cached a prefix of the prompt. Serve
itself starts and restarts replicas, checks their health, scales their number, and drains a replica before it ends.
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
"""Exceptions which mean that a replica, or a result that it had sent, is lost."""
STATE_SECONDS = 5.0
HEALTH_SECONDS = 5.0
BACKOFF_SECONDS = 0.5
"""Maximum time in seconds before a request without a replica tries again to find one."""
_ROUTED_AT_ONCE = 4096  # maximum number of requests of a gateway


def application(options: FleetOptions, plan: Plan) -> serve.Application:
    """Return the Serve application with the replicas and gateways that the options and the plan describe."""
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
    """Serve deployment with the engine and the application of `sscc serve`.

    Args:
        words: command line of `sscc serve`.
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
        """Return the application's answer as (parts, number of streamed parts).

        The parts of a stream are sent to the gateway as they are generated, and the returned list is empty. Otherwise
        the list has all parts, and the number is 0.

        If the engine has failed before, the process ends, so that Serve replaces the replica at once: until the next
        health check it would attract requests by refusing them quickly. The process also ends during a request if a
        rank is lost, because the request can succeed on another replica. Other failures of the engine are answered.
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
        """Return the replica's name and its state, in the form of `Pool.states`."""
        metrics, status = await self._get("/metrics"), await self._get("/v1/status")
        return self._name, {"metrics": metrics.decode(), "status": json.loads(status)}

    def _end_process(self) -> None:
        _log.error("the replica ends: %s", self._served.engine.failure)
        os._exit(1)  # its ranks end with it

    async def _get(self, path: str) -> bytes:
        parts = [part async for part in answered(self._served.app, Call("GET", path, b"", self._headers))]
        return b"".join(part for part in parts if isinstance(part, bytes))

    def check_health(self) -> None:
        """Raise RuntimeError if the engine has failed. Serve then starts another replica."""
        if (failure := self._served.engine.failure) is not None:
            raise RuntimeError(f"the engine has failed: {failure}")

    def __del__(self) -> None:
        """Close the engine. Serve calls this when all requests are finished or the time to drain is over."""
        if hasattr(self, "_open"):
            self._open.close()


class RayPool:
    """Pool of the replicas. Calls go through Serve's handle; streams bypass it and arrive in an `Inbox`."""

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
        answers = self._handle.broadcast("state")
        try:
            states = await answers.results_async(timeout_s=STATE_SECONDS, return_exceptions=True)
        except TimeoutError:
            return {}
        return dict(sorted(state for state in states if not isinstance(state, BaseException)))


class Front:
    """Serve deployment of a gateway.

    Args:
        replicas: handle of the `Replica` deployment.
        plan: plan of the replicas.
        attempts: see `Gateway`.
        host: address on which the gateway listens, if it has a port of its own.
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
        """Answer a request that came through one of Serve's proxies."""
        return _Through(self._gateway)

    async def reconfigure(self, listens: Mapping[str, Any]) -> None:
        """Listen on a port of its own. Serve calls this before the first request and when the configuration changes."""
        await self._stop()
        self._listening = await Listening.start(self._gateway, listens["host"], listens["port"], self._drain_seconds)

    def check_health(self) -> None:
        """Raise RuntimeError if the gateway has stopped listening. Serve then starts another one."""
        if self._listening is not None and self._listening.ended:
            raise RuntimeError("the gateway has stopped listening")

    async def __del__(self) -> None:
        """Stop listening. Serve calls this when the gateway is to end, and waits until requests are finished or the
        time to drain is over."""
        await self._stop()

    async def _stop(self) -> None:
        listening = getattr(self, "_listening", None)
        if listening is not None:
            await listening.stop()


class _Through(Response):
    """Response that an ASGI application generates. Serve calls it with the scope of the request."""

    def __init__(self, application: ASGIApp) -> None:
        super().__init__()
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


class PrefixRouter(RequestRouter):
    """Router that prefers the replica with the longest cached prefix of a prompt, unless its load is much higher."""

    def initialize_state(self, imbalance: int) -> None:
        """Create the table of prompts. Serve calls this with `request_router_kwargs`."""
        self._affinity: Affinity[ReplicaID] = Affinity(imbalance)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter`."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # wait a moment if all are full
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
