"""Which engine Ray Serve sends a call to, and how many engines there should be; Ray carries this module's code."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from vivavoce.engine.routing import EngineLoad, order

FULL = 0.7
"""Share of the streams that engines keep up with from which there should be one more: who comes while it loads needs
the rest, and whoever an engine that ends leaves behind."""


class HeadroomRouter(RequestRouter):
    """Sends a call where `order` says; `EngineReplica.speak` begins with the voice's key and whom to avoid."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas, each in a rank of its own, the best first; where none is ready, one of them is to say so."""
        key, avoid = None, frozenset[str]()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if pending_request.metadata.call_method == "speak":
                key, avoid = pending_request.args[:2]
        replicas = {one.replica_id.unique_id: one for one in candidate_replicas}
        loads = [self._load(one) for name, one in replicas.items() if name not in avoid]
        return [[replicas[load.name]] for load in order(loads, key)] or [candidate_replicas]

    def _load(self, replica: RunningReplica) -> EngineLoad:
        """As the replica has told lately; its calls are counted at once."""
        told, calls = replica.routing_stats, self.replica_queue_len_cache.get(replica.replica_id)
        streams = told.get("streams", 0) if calls is None else calls
        return EngineLoad(replica.replica_id.unique_id, told.get("ready", True), streams, told.get("capacity", 1))


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """A policy of Ray's autoscaling: engines that keep up with the streams of the last half minute, and have room."""
    told = context.aggregated_metrics or {}
    if not told.get("capacity"):
        return context.target_num_replicas, {}
    streams = fmean(told["streams"].values()) * context.current_num_replicas
    return math.ceil(streams / (FULL * fmean(told["capacity"].values()))), {}
