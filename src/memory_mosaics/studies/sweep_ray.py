"""A sweep on a Ray cluster: Ray Tune asks the journal for trials and places them on its machines."""

import json
import os
from typing import Any, ClassVar

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.studies.sweep_trials import Claim, Plan, Settings, attempt, claim, record


def on_ray(plan: Plan, study: Any, jobs: int) -> bool:
    """Train on a Ray cluster, `jobs` at once; false if stopped. Its machines see the corpus and the folder alike."""
    try:
        import ray  # type: ignore[import-not-found]
        from ray import tune  # type: ignore[import-not-found]
        from ray.tune.search import Searcher  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("--cluster ray needs Ray: pip install 'memory-mosaics[ray]'") from None

    class Journal(Searcher):  # Ray Tune asks it for trials
        claims: ClassVar[dict[str, Claim]] = {}
        exhausted: ClassVar[bool] = False

        def suggest(self, trial_id: str) -> Any:
            if claimed := claim(plan, study):
                Journal.claims[trial_id] = claimed
                return claimed[1]
            Journal.exhausted = True
            return Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            if result and result.get("outcome"):  # otherwise it stays claimed: not for this cluster to try again
                trial, _, held = Journal.claims.pop(trial_id)
                record(plan, study, trial, json.loads(result["outcome"]))
                held.release()

        def save(self, checkpoint_path: str) -> None: ...
        def restore(self, checkpoint_path: str) -> None: ...

    here = os.getcwd()

    def trainable(settings: Settings) -> None:
        os.chdir(here)
        outcome = attempt(plan.trial(settings), plan.identity["chance"])
        tune.report({"outcome": json.dumps(outcome) if outcome else ""})

    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    there = ray.cluster_resources()
    share = {"cpu": max(1, int(there.get("CPU", 1)) // jobs), "gpu": min(1.0, there.get("GPU", 0) / jobs)}
    asks = tune.TuneConfig(search_alg=Journal(), num_samples=-1, max_concurrent_trials=jobs)
    place = tune.RunConfig(name="ray", storage_path=str(plan.run.out.resolve()), verbose=0)
    ended = tune.Tuner(tune.with_resources(trainable, share), tune_config=asks, run_config=place).fit()
    for _, _, held in Journal.claims.values():  # of trials that were interrupted
        held.release()
    if ended.errors:
        raise UserError(f"a trial on Ray ended with {one_line(ended.errors[0])}; the same command goes on")
    return Journal.exhausted and not Journal.claims
