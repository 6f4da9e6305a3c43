"""Arms of `table1` beside a search of WARP's settings, in one visit to a GPU that ends at a given second.

    nvidia-cuda-mps-control -d
    python benchmarks/table1_at_best.py --size paper --data CIFAR --processes 10 --at-once 2 --defenses warp \\
        --first "ngp warp" "bad_teacher warp" --then "ngp best" "bad_teacher best" --shadows 16 --forget-sets 4 \\
        --search-until 300 --until 540 --store STORE --out DIR [--known FILE]

First the originals and the search (`defense_search.py`), and after them, while that comes to its end, the arms of
`--first`; then those of `--then`, where "best" is WARP with the settings that were chosen. Arms come one after another,
each shadow by shadow. What is left at the end goes on from DIR/store.tar (`warp runs merge`).

`--chosen` takes the settings of an earlier search instead of searching. `--known` is a JSON of models that there are
elsewhere, the digest of its original by the digest of each key (`table1_views.py` writes it): such a model is made
again only where the original that was trained here, or in the last visit, is another one.
"""

from __future__ import annotations

import argparse
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from time import time
from typing import Any

import torch
from defense_search import SEARCHED, Asking, SearchPlan, SearchWork, plan_search, results

from warp_unlearning.runs.jobs import Job, Steps
from warp_unlearning.runs.pack import pack
from warp_unlearning.runs.progress import Progress
from warp_unlearning.runs.store import Store
from warp_unlearning.studies.cell_plan import Cell, CellPlan, plan_cells
from warp_unlearning.studies.cell_work import ABOUT, CellWork
from warp_unlearning.studies.study import SIX, SIZES, study_settings
from warp_unlearning.studies.workplace import Workplace
from warp_unlearning.workflows.engines import choose_study_engine

WEIGHTY = ("original", "search-train")


@dataclass(frozen=True, eq=False)
class Together:
    """Does jobs of several plans, each by the work that knows it; data are loaded once for all."""

    works: Sequence[tuple[frozenset[str], Any]]

    def __call__(self, job: Job, store: Store) -> Steps:
        """An update at a time."""
        work = next(work for digests, work in self.works if job.key.digest in digests)
        files: Mapping[str, bytes] = yield from work(job, store)
        return files


@dataclass(frozen=True, eq=False)
class Visit:
    """What is done, and until when."""

    search: SearchPlan
    place: Workplace
    store: Store
    options: argparse.Namespace
    began: float

    def cells(self, settings: Mapping[str, Any] | None = None) -> CellPlan:
        """The study, with these settings of "method + defence"."""
        options = self.options
        asked = replace(
            self.search.asking.asked(settings),
            methods=options.methods,
            shadows=options.shadows,
            forget_sets=options.forget_sets,
            pairs=0,
        )
        study = study_settings("table1", options.size, asked)
        if options.audited is not None:
            study = replace(study, audited=options.audited)
        return plan_cells(study, self.place.data, defense_seed=0)

    def run(self, jobs: Sequence[Job], plans: Sequence[CellPlan], until: float) -> None:
        """Do jobs of the search and of studies until so many seconds after the beginning."""
        found: list[tuple[frozenset[str], Any]] = [(frozenset(self.search.tasks), SearchWork(self.search, self.place))]
        for plan in plans:
            work = CellWork(plan, 0)
            object.__setattr__(work, "_place", self.place)
            found.append((frozenset(plan.cells), work))
        options = self.options
        engine = choose_study_engine(options.device, at_once=options.at_once, processes=options.processes).engine
        with Progress(jobs, self.store, "lines") as shown:
            outcome = engine(jobs, Together(found), self.store, watch=shown, until=self.began + until)
        print(f"left {len(outcome.left)}, failed {len(outcome.failed)}", flush=True)


def jobs_of(plan: CellPlan, arms: Sequence[str], order: int) -> list[Job]:
    """The jobs of these arms of a study, one arm after another, with the originals of their shadows before them."""
    found = []
    for job in plan.jobs:
        cell = plan.cells[job.key.digest]
        if cell.kind != "cell":
            found.append(replace(job, order=-2))
        elif cell.arm in arms:
            found.append(replace(job, order=order + 100 * arms.index(cell.arm) + cell.shadow))
    return found


def name_of(arm: str) -> str:
    """An arm as studies call it: "ngp none" is "ngp", and "ngp best" is "ngp + warp"."""
    method, defense = arm.split()
    return method if defense == "none" else f"{method} + {'warp' if defense == 'best' else defense}"


def changed(plan: CellPlan, store: Store, job: Job, known: Mapping[str, str]) -> bool:
    """Whether no model of this job is known that was unlearned from the original that is in the store, or was the last
    time.
    """
    cell = plan.cells[job.key.digest]
    if cell.kind != "cell" or job.key.digest not in known:
        return True
    scores = plan.key(Cell("scores", cell.shadow))
    there = store.has(scores)
    original = json.loads(store.read(scores).read(ABOUT))["original"] if there else known.get(scores.digest)
    return bool(original != known[job.key.digest])


def keep_packing(store: Store, file: Path, over: Flag) -> None:
    """Write all results without weights to `file`, again and again."""
    while True:
        last = over.wait(45)
        new = file.with_suffix(".new.tar")
        new.unlink(missing_ok=True)
        kinds = {entry.key.kind for entry in store.entries()}
        try:
            pack(store, new, without=[kind for kind in WEIGHTY if kind in kinds])
            os.replace(new, file)
        except (OSError, ValueError, tarfile.TarError) as error:
            print(f"not packed: {error}", flush=True)
        if last:
            return


def visit(options: argparse.Namespace, began: float) -> None:
    """Do it all."""
    asking = Asking(
        options.size,
        options.data,
        options.device,
        methods=tuple(options.methods),
        defenses=tuple(options.defenses),
        draws=options.draws,
        finalists=options.finalists,
        shadows=options.search_shadows,
        forget_sets=options.search_sets,
        audited=options.audited,
        epochs=options.epochs,
    )
    search, store = plan_search(asking), Store(options.store)
    place = Workplace(search.study.data, search.study.device)
    here = Visit(search, place, store, options, began)
    options.out.mkdir(parents=True, exist_ok=True)
    over = Flag()
    packing = Thread(target=keep_packing, args=(store, options.out / "store.tar", over))
    packing.start()
    try:
        plain = here.cells()
        first = jobs_of(plain, [name_of(arm) for arm in options.first], order=1)
        if options.chosen is None:
            here.run([*search.jobs, *first], [plain], options.search_until)
            chosen = results(search, store, options.out)
        else:
            chosen = json.loads(options.chosen.read_text())
        known = {} if options.known is None else json.loads(options.known.read_text())
        best = here.cells(chosen)
        later: list[Job] = []
        for number, arm in enumerate([*options.first, *options.then]):
            method = arm.split()[0]
            if arm.endswith(" best") and f"{method} + warp" not in chosen:
                print(f"nothing was chosen for {arm}", flush=True)
                continue
            plan = best if arm.endswith(" best") else plain
            found = jobs_of(plan, [name_of(arm)], order=100 * number)
            later += [job for job in found if changed(plan, store, job, known)]
        jobs = list({job.key: job for job in reversed(later)}.values())
        here.run(jobs, [plain, best], options.until)
    finally:
        over.set()
        packing.join()
    print(f"{time() - began:.0f} s: over", flush=True)


def main() -> None:
    """Read what is asked for."""
    began = time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(SIX))
    parser.add_argument("--defenses", nargs="+", default=list(SEARCHED), choices=SEARCHED, help="those searched")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--finalists", type=int, default=4)
    parser.add_argument("--search-shadows", type=int, default=2)
    parser.add_argument("--search-sets", type=int, default=2)
    parser.add_argument("--first", nargs="*", default=[], help='arms, each as "METHOD DEFENCE"')
    parser.add_argument("--then", nargs="*", default=[], help='arms; the defence may be "best" too')
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--forget-sets", type=int, default=4)
    parser.add_argument("--search-until", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--until", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--chosen", type=Path, help="settings that an earlier search wrote")
    parser.add_argument("--known", type=Path)
    parser.add_argument("--audited", type=int, help="points that are audited, for trials at a small size")
    parser.add_argument("--epochs", type=int, help="of the originals, for trials at a small size")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--at-once", type=int)
    visit(parser.parse_args(), began)


if __name__ == "__main__":
    # Workers know this file by the name of its module.
    from table1_at_best import main as in_module

    in_module()
