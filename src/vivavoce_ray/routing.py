"""Chooses the engine for a call of Ray Serve, and the number of engines; Ray ships this module's code."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from vivavoce_fleet.routing import EngineLoad, order

FULL = 0.7
"""Share of the capacity in use at which another engine is started. The rest serves requests that come while that engine
loads, and the requests of an engine that ends."""


class HeadroomRouter(RequestRouter):
    """Sorts replicas by `order`. `EngineReplica.speak` has the voice's key and names to avoid as first arguments."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas, the best first, one replica per rank; if none is ready, one rank has all."""
        key, avoid = None, frozenset[str]()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if pending_request.metadata.call_method == "speak":
                key, avoid = pending_request.args[:2]
        replicas = {one.replica_id.unique_id: one for one in candidate_replicas}
        loads = [self._load(one) for name, one in replicas.items() if name not in avoid]
        return [[replicas[load.name]] for load in order(loads, key)] or [candidate_replicas]

    def _load(self, replica: RunningReplica) -> EngineLoad:
        report, calls = replica.routing_stats, self.replica_queue_len_cache.get(replica.replica_id)
        streams = report.get("streams", 0) if calls is None else calls
        return EngineLoad(replica.replica_id.unique_id, report.get("ready", True), streams, report.get("capacity", 1))


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """A policy of Ray's autoscaling: enough engines for the streams of the last half minute, with some room."""
    metrics = context.aggregated_metrics or {}
    if not metrics.get("capacity"):
        return context.target_num_replicas, {}
    streams = fmean(metrics["streams"].values()) * context.current_num_replicas
    return math.ceil(streams / (FULL * fmean(metrics["capacity"].values()))), {}
