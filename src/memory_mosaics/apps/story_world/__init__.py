"""The embedded story world: unlimited short stories for small language models, without a download.

A story is simulated, then narrated. A plot draws people, things and places and lets wants meet obstacles (plots.py);
every event is checked against the state and changes it (world.py); narration.py turns the trace into simple English.
Words, rules, plots and phrases are the text files in data/. So what a story says about who has what, where a thing was
hidden or which colour it has is true to its end, and a reader with a memory can tell what must come.

Importing it makes `stories:COUNT` a source of corpora and `story_memory` a task of `mosaics lm-eval`.

    >>> one = story(seed=0, index=7)
    >>> one.text, one.features, one.words, one.probes
"""

from pathlib import Path

from memory_mosaics.apps.story_world.generator import Story, documents, stories, story
from memory_mosaics.experiments.lm_eval import TASK_FOLDERS
from memory_mosaics.text.sources import GENERATORS

__all__ = ["Story", "stories", "story"]

GENERATORS["stories"] = documents  # a source of corpora: stories:COUNT:SEED
TASK_FOLDERS.append(Path(__file__).parent / "lm_eval")  # story_memory
