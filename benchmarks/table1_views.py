"""Table 1 from models of two visits, seen in every way: `python benchmarks/table1_views.py --help`.

    python benchmarks/table1_views.py --data CIFAR --before OLD --now NEW --gathered DIR --out OUT

OLD and NEW are stores (`warp runs merge`). A GPU need not train an original to the same bits in two visits, so models
are gathered twice: in DIR/same those that descend from the originals of the later visit, of the shadows that have
methods alone among them, and in DIR/all of every model the later one there is. `warp reproduce --only-results` makes
its table from either. Here each method alone stands beside its defences over the shadows that both have:

- scores: the logit of the label's confidence, or the confidence itself;
- never seen: by the same unlearned models, or by originals;
- slices: all points, or those most memorised, ranked by the gap that a point makes or by training confidence.

Differences are paired over shadows and points, and of areas turned round where they are below one half. OUT/views.json
and OUT/views.md have all of it, and what teleports did to the loss on examples to forget; OUT/known.json, of all
that DIR/all holds, is for `table1_at_best.py --known`: gather the arms at chosen settings in the same DIR, last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.attacks.membership.shadow_audit import audit_against_originals, shadow_audit
from warp_unlearning.attacks.membership.shadow_design import memorisation, most_memorised
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import WarpError
from warp_unlearning.runs.store import Store
from warp_unlearning.stats.intervals import Estimate, mean
from warp_unlearning.studies.cell_plan import Cell, CellPlan, plan_cells
from warp_unlearning.studies.cell_scores import cell_arm_scores, cell_original_scores, cell_summaries
from warp_unlearning.studies.cell_settings import StudyArm
from warp_unlearning.studies.cell_work import ABOUT
from warp_unlearning.studies.shadow_scores import ArmScores, OriginalScores
from warp_unlearning.studies.study import SIX, SIZES, Asked, study_settings

SLICES = {
    "all": None,
    "gap, 1 %": ("gap", 0.01),
    "gap, 5 %": ("gap", 0.05),
    "training confidence, 1 %": ("training_confidence", 0.01),
    "training confidence, 5 %": ("training_confidence", 0.05),
}
SCORES = ("logit", "probability")
NULLS = ("unlearned", "originals")


def gather(plan: CellPlan, before: Store, now: Store, store: Store, *, same: bool) -> None:
    """Put the models of both stores into `store`."""
    today = {}
    for shadow in range(plan.settings.shadows):
        key = plan.key(Cell("scores", shadow))
        if now.has(key):
            today[shadow] = json.loads(now.read(key).read(ABOUT))["original"]
    kept: dict[Cell, dict[str, bytes]] = {}
    for job in plan.jobs:
        cell = plan.cells[job.key.digest]
        source = next((each for each in (now, before) if each.has(job.key)), None)
        if cell.kind == "original" or source is None:
            continue
        files = source.read(job.key).read_all()
        if not same or json.loads(files[ABOUT])["original"] == today.get(cell.shadow):
            kept[cell] = files
    alone = {cell.shadow for cell in kept if cell.kind == "cell" and "+" not in cell.arm}
    for cell, files in kept.items():
        if cell.shadow in alone or not same:
            store.write(plan.key(cell), files)


def known(store: Store) -> dict[str, str]:
    """The digest of the original of everything in `store`, at whatever settings, by the digest of its key."""
    found = {entry.key.digest: json.loads(entry.read(ABOUT))["original"] for entry in store.entries()}
    return dict(sorted(found.items()))


def restricted(scores: ArmScores, shadows: NDArray[np.int64]) -> ArmScores:
    """The models of these shadows."""
    rows = np.isin(scores.groups, shadows)
    masks = {name: getattr(scores, name)[rows] for name in ("confidence", "groups", "forgotten", "never", "kept")}
    return replace(scores, **masks, accuracy={name: each[rows] for name, each in scores.accuracy.items()})


def audited(scores: ArmScores, originals: OriginalScores, score: str, null: str) -> Audit:
    """U-LiRA on one score against one null."""
    values, others = scores.confidence, originals.confidence
    if score == "probability":
        values, others = (1 / (1 + np.exp(-each)) for each in (values, others))
    if null == "unlearned":
        return shadow_audit(values, forgotten=scores.forgotten, never=scores.never, groups=scores.groups)
    kept = np.isin(originals.shadows, scores.groups)
    return audit_against_originals(
        values,
        forgotten=scores.forgotten,
        groups=scores.groups,
        original_scores=others[kept],
        original_never=~originals.trained[kept],
        original_groups=originals.shadows[kept],
    )


def views(alone: ArmScores, defended: ArmScores, originals: OriginalScores) -> Iterator[dict[str, Any]]:
    """Both arms in every way, and by how much the defence lowers the area."""
    for score, null in product(SCORES, NULLS):
        both = [audited(each, originals, score, null) for each in (alone, defended)]
        for name, ranked in SLICES.items():
            row: dict[str, Any] = {"score": score, "never seen": null, "slice": name}
            try:
                parts = both if ranked is None else [_slice(each, originals, *ranked) for each in both]
                found = parts[0].compare(parts[1])
                row |= {"alone": asdict(parts[0].interval()), "defended": asdict(parts[1].interval())}
                row |= {"lower by": asdict(found.difference)}
            except WarpError as error:
                row |= {"problem": str(error)}
            yield row


def _slice(audit: Audit, originals: OriginalScores, measure: Any, share: float) -> Audit:
    ranked = memorisation(originals.confidence, trained=originals.trained, measure=measure)
    rows = np.searchsorted(originals.shadows, audit.shadows)
    return audit.restricted(most_memorised(ranked[rows], share))


def teleports(plan: CellPlan, store: Store, arm: StudyArm, shadows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Of each teleport of an unlearning the mean losses before and after, over models."""
    found = [each for each in cell_summaries(plan, store, arm) if each["shadow"] in shadows]
    made = [each["teleports"] for each in found if each.get("teleports", {}).get("forget_loss")]
    rows = []
    for number in range(min((each["count"] for each in made), default=0)):
        row: dict[str, Any] = {"taken back": float(np.mean([each["moved"][number] == 0 for each in made]))}
        for what in ("forget_loss", "retain_loss"):
            pairs = [each[what][number] for each in made if each[what][number] is not None]
            row[what] = [asdict(mean([pair[side] for pair in pairs])) for side in (0, 1)] if pairs else None
        rows.append(row)
    return rows


def compared(plan: CellPlan, store: Store) -> list[dict[str, Any]]:
    """Every method that has models alone and with a defence, over the shadows that both have."""
    originals, rows = cell_original_scores(plan, store), []
    arms = {(arm.shown_method, arm.shown_defense): arm for arm in plan.settings.arms}
    for (method, defense), arm in arms.items():
        if defense is None:
            continue
        both = [cell_arm_scores(plan, store, each) for each in (arms[method, None], arm)]
        shadows = np.intersect1d(both[0].groups, both[1].groups)
        if len(shadows) < 8:
            continue
        alone, defended = (restricted(each, shadows) for each in both)
        row = {
            "method": method,
            "defense": defense,
            "settings": dict(arm.defense_settings),
            "shadows": [int(each) for each in shadows],
            "models": [len(alone.groups), len(defended.groups)],
            "views": list(views(alone, defended, originals)),
            "teleports": teleports(plan, store, arm, shadows),
        }
        for what in ("test", "forget", "retain"):
            means = [[float(e.accuracy[what][e.groups == s].mean()) for s in shadows] for e in (alone, defended)]
            found = {"alone": means[0], "defended": means[1], "higher by": np.subtract(means[1], means[0])}
            row[f"{what} accuracy"] = {name: asdict(mean(values)) for name, values in found.items()}
        rows.append(row)
    return rows


def shown(found: dict[str, float]) -> str:
    """An estimate."""
    return str(Estimate(**found))


def markdown(gathered: dict[str, list[dict[str, Any]]]) -> str:
    """Tables of all of it, after one of the logit's areas against points that the same unlearned models never saw."""
    heads = "all, alone", "all, defended", *(f"{name}: lower by" for name in SLICES), "test accuracy higher by"
    lines = ["| models | arm | shadows | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
    for name, rows in gathered.items():
        for row in rows:
            chosen = [view for view in row["views"] if (view["score"], view["never seen"]) == ("logit", "unlearned")]
            cells = [shown(chosen[0]["alone"]), shown(chosen[0]["defended"])]
            cells += [shown(view["lower by"]) if "lower by" in view else view["problem"] for view in chosen]
            cells.append(shown(row["test accuracy"]["higher by"]))
            arm = f"{row['method']} + {row['defense']}"
            lines.append(f"| {HEADS[name]} | {arm} | {len(row['shadows'])} | " + " | ".join(cells) + " |")
    lines.append("")
    for name, rows in gathered.items():
        for row in rows:
            lines += [f"## {row['method']} + {row['defense']}, {HEADS[name]}", ""]
            settings = json.dumps(row["settings"]) if row["settings"] else "the defaults"
            lines += [f"Shadows {row['shadows']}; {row['models'][0]} and {row['models'][1]} models; {settings}.", ""]
            lines += ["| accuracy on | alone | defended | higher by |", "|---|---|---|---|"]
            for what in ("test", "forget", "retain"):
                cells = [shown(row[f"{what} accuracy"][each]) for each in ("alone", "defended", "higher by")]
                lines.append(f"| {what} | " + " | ".join(cells) + " |")
            lines += ["", "| score | never seen by | slice | AUC alone | AUC defended | lower by |", "|---" * 6 + "|"]
            for view in row["views"]:
                keys = ("alone", "defended", "lower by")
                cells = [view["problem"], "", ""] if "problem" in view else [shown(view[key]) for key in keys]
                lines.append(
                    f"| {view['score']} | {view['never seen']} | {view['slice']} | " + " | ".join(cells) + " |"
                )
            lines += ["", "| teleport | loss on forgotten examples before | after | on held-out examples | after |"]
            lines.append("|---" * 5 + "|")
            for number, each in enumerate(row["teleports"], 1):
                cells = [shown(side) for what in ("forget_loss", "retain_loss") for side in each[what]]
                lines.append(f"| {number} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


HEADS = {"same": "descended from the same originals", "all": "all models, those of two visits together"}


def main() -> None:
    """Read what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="paper", choices=list(SIZES))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda", help="that the models were made on")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--now", type=Path, required=True)
    parser.add_argument("--gathered", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(SIX))
    parser.add_argument("--defenses", nargs="+", default=["warp", "fastwarp"])
    parser.add_argument(
        "--chosen", type=Path, help='settings by "method + defence", as `defense_search.py` writes them'
    )
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--forget-sets", type=int, default=4)
    options = parser.parse_args()
    asked = Asked(
        methods=options.methods,
        defenses=["none", *options.defenses],
        defense_options={} if options.chosen is None else json.loads(options.chosen.read_text()),
        shadows=options.shadows,
        forget_sets=options.forget_sets,
        pairs=0,
        device=options.device,
        data_path=options.data,
    )
    settings = study_settings("table1", options.size, asked)
    plan = plan_cells(settings, load_data(**settings.data), defense_seed=0)
    found = {}
    for name in HEADS:
        store = Store(options.gathered / name)
        gather(plan, Store(options.before), Store(options.now), store, same=name == "same")
        found[name] = compared(plan, store)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "known.json").write_text(json.dumps(known(Store(options.gathered / "all"))) + "\n")
    (options.out / "views.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "views.md").write_text(markdown(found))
    print((options.out / "views.md").read_text())


if __name__ == "__main__":
    main()
