"""Trials on a Ray cluster: Ray Tune asks the queues of a study for trials and places them on its machines."""

import json
import os
from collections.abc import Sequence
from typing import Any, ClassVar

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.trials import Claim, Plan, Settings


def need_ray() -> None:
    """Say so before anything is written."""
    try:
        import ray.tune  # noqa: F401  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("--cluster ray needs Ray: pip install 'memory-mosaics[ray]'") from None


def on_ray(plans: Sequence[Plan], jobs: int) -> bool:
    """Train on a Ray cluster, `jobs` at once; false if stopped. Its machines see all folders alike."""
    import ray  # type: ignore[import-not-found]
    from ray import tune  # type: ignore[import-not-found]
    from ray.tune.search import Searcher  # type: ignore[import-not-found]

    queues = [plan.queue() for plan in plans]

    class Claims(Searcher):  # Ray Tune asks it for trials
        claims: ClassVar[dict[str, tuple[int, Claim]]] = {}
        exhausted: ClassVar[bool] = False

        def suggest(self, trial_id: str) -> Any:
            for number, queue in enumerate(queues):
                if claimed := queue.claim():
                    Claims.claims[trial_id] = number, claimed
                    return {"plan": number, "settings": claimed.settings}
            Claims.exhausted = True
            return Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            if result and result.get("outcome"):  # otherwise it stays claimed: not for this cluster to try again
                number, claimed = Claims.claims.pop(trial_id)
                queues[number].record(claimed, json.loads(result["outcome"]))
                claimed.held.release()

        def save(self, checkpoint_path: str) -> None: ...
        def restore(self, checkpoint_path: str) -> None: ...

    here = os.getcwd()

    def trainable(trial: Settings) -> None:
        os.chdir(here)
        outcome = plans[trial["plan"]].attempt(trial["settings"])
        tune.report({"outcome": json.dumps(outcome) if outcome else ""})

    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    there = ray.cluster_resources()
    share = {"cpu": max(1, int(there.get("CPU", 1)) // jobs), "gpu": min(1.0, there.get("GPU", 0) / jobs)}
    asks = tune.TuneConfig(search_alg=Claims(), num_samples=-1, max_concurrent_trials=jobs)
    place = tune.RunConfig(name="ray", storage_path=str(plans[0].out.resolve()), verbose=0)
    ended = tune.Tuner(tune.with_resources(trainable, share), tune_config=asks, run_config=place).fit()
    for _, claimed in Claims.claims.values():  # of trials that were interrupted
        claimed.held.release()
    if ended.errors:
        raise UserError(f"a trial on Ray ended with {one_line(ended.errors[0])}; the same command goes on")
    return Claims.exhausted and not Claims.claims
