"""A small study, carried out in this process, and what must hold of any."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from warp_unlearning.attacks.membership.pair_audit import PairAuditor
from warp_unlearning.attacks.membership.shadow_design import memorisation, most_memorised
from warp_unlearning.data.preprocess import ImageData, load_data
from warp_unlearning.errors import InputError
from warp_unlearning.gpu.lanes import Lane
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.models.networks import build_model
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.jobs import Job, NoRoom, Steps, finished
from warp_unlearning.runs.local import Lanes, run_here, run_local
from warp_unlearning.runs.pack import merge, pack
from warp_unlearning.runs.store import Store
from warp_unlearning.studies.arm_audits import tried_audit
from warp_unlearning.studies.cell_plan import Cell, CellPlan, plan_cells
from warp_unlearning.studies.cell_scores import cell_arm_scores, cell_original_scores
from warp_unlearning.studies.cell_settings import CellSettings, StudyArm
from warp_unlearning.studies.cell_work import ABOUT, SCORES, WEIGHTS, CellWork
from warp_unlearning.studies.shadow_scores import ArmScores
from warp_unlearning.studies.stored import arrays_of, weights_of
from warp_unlearning.studies.study import Asked, study_settings
from warp_unlearning.studies.study_results import shadows_complete, study_results
from warp_unlearning.studies.version_0_1 import stored_settings
from warp_unlearning.training.scoring import logit_confidence
from warp_unlearning.workflows.engines import GpuLane

NGP = {"epochs": 2, "batch_size": 16}
ARMS = (
    StudyArm("ngp", NGP, sets=2),
    StudyArm("ngp", NGP, "warp", sets=2),
    StudyArm("ngp", NGP, "warp", {"aim": "random"}, called="kick", sets=2),
    StudyArm("finetune", {"epochs": 1}, sets=1),
    StudyArm("finetune", {"epochs": 1, "lr": 1e20}, swept={"lr": 1e20}, sets=1),
)
LANES = partial(run_here, lanes=Lanes(3, lambda: Lane(torch.device("cpu"))))


@pytest.fixture(scope="module")
def settings(blobs: Path) -> CellSettings:
    return CellSettings(
        data={"name": "npz", "path": blobs},
        network="mlp",
        network_options={"hidden": [16]},
        training={"epochs": 10, "batch_size": 16},
        arms=ARMS,
        shadows=6,
        parts=2,
        audited=60,
        validation=20,
        pairs=1,
        pair_examples=20,
        seed=20,
    )


@pytest.fixture(scope="module")
def data(blobs: Path) -> ImageData:
    return load_data("npz", path=blobs)


@pytest.fixture(scope="module")
def plan(settings: CellSettings, data: ImageData) -> CellPlan:
    return plan_cells(settings, data, defense_seed=7)


@pytest.fixture(scope="module")
def store(plan: CellPlan, tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = Store(tmp_path_factory.mktemp("study") / "store")
    outcome = LANES(plan.to_do(found), CellWork(plan, 7), found)
    assert outcome.complete, outcome.failed
    return found


@pytest.mark.long
def test_processes_with_lanes_make_the_same_models(plan: CellPlan, store: Store, tmp_path: Path) -> None:
    apart = Store(tmp_path / "store")
    jobs = [job for job in plan.to_do(apart) if plan.cells[job.key.digest].shadow < 2]
    assert run_local(jobs, CellWork(plan, 7), apart, workers=2, lanes=Lanes(2, GpuLane("cpu"))).complete
    scored = [job.key for job in jobs if job.key.kind == "cell"]
    assert len(scored) == 16
    for key in scored:
        assert apart.read(key).read_all().get(SCORES) == store.read(key).read_all().get(SCORES)


def test_the_division_and_the_forget_sets(plan: CellPlan) -> None:
    division = plan.division
    everything = np.concatenate([division.validation, division.pool])
    assert sorted(everything) == list(range(120))
    assert len(division.audited) == 60
    assert set(division.audited) <= set(division.pool)
    for shadow in range(6):
        sets = [set(plan.forgotten(shadow, part)) for part in range(2)]
        assert sets[0] | sets[1] == set(plan.trained(shadow))
        assert not sets[0] & sets[1]
        assert set(plan.retained(shadow, 0)) == sets[1]
        assert set(plan.never(shadow)) == set(division.pool) - set(plan.trained(shadow))


def test_a_study_that_grows_keeps_its_results(settings: CellSettings, data: ImageData, plan: CellPlan) -> None:
    larger = plan_cells(replace(settings, shadows=8), data, defense_seed=7)
    assert {job.key for job in plan.jobs} < {job.key for job in larger.jobs}
    more_arms = plan_cells(replace(settings, arms=(*ARMS, StudyArm("salun", sets=1))), data, defense_seed=7)
    assert {job.key for job in plan.jobs} < {job.key for job in more_arms.jobs}


@pytest.mark.parametrize(
    "change",
    [{"seed": 21}, {"audited": 50}, {"validation": 10}, {"training": {"epochs": 9}}, {"first_shadow": 1000}],
    ids=str,
)
def test_another_setting_is_another_result(
    settings: CellSettings, data: ImageData, plan: CellPlan, change: dict[str, object]
) -> None:
    other = plan_cells(replace(settings, **change), data, defense_seed=7)  # type: ignore[arg-type]
    assert {j.key for j in other.jobs if j.key.kind == "cell"}.isdisjoint(j.key for j in plan.jobs)


def test_a_cell_is_the_method_by_itself(plan: CellPlan, store: Store, data: ImageData) -> None:
    model = build_model("mlp", generator=torch.Generator(), inputs=6, classes=3, hidden=[16])
    weights = store.read(plan.key(Cell("original", 2))).read(WEIGHTS)
    model.load_state_dict(weights_of(weights))
    original = build_model("mlp", generator=torch.Generator(), inputs=6, classes=3, hidden=[16])
    original.load_state_dict(weights_of(weights))
    points = {
        name: data.train.select(torch.from_numpy(index))
        for name, index in (
            ("forget", plan.forgotten(2, 1)),
            ("retain", plan.retained(2, 1)),
            ("validation", plan.division.validation),
        )
    }
    task = Task(**points, original=original.eval(), classes=3, streams=Streams(20, "study unlearn", 2, 1))
    for _ in NegGradPlus(**NGP).updates(model.train(), task):
        pass
    audited = data.train.select(torch.from_numpy(plan.division.audited))
    expected = logit_confidence(model.eval()(audited.x).detach().double().numpy(), audited.y.numpy())
    found = arrays_of(store.read(plan.key(Cell("cell", 2, 1, "ngp"))).read(SCORES))
    assert {name: values.dtype.name for name, values in found.items()} == {"confidence": "float16", "energy": "float32"}
    np.testing.assert_allclose(found["confidence"].astype(np.float64), expected, rtol=2**-11 + 1e-4, atol=1e-4)
    about = json.loads(store.read(plan.key(Cell("cell", 2, 1, "ngp"))).read(ABOUT))
    forget = points["forget"]
    assert about["accuracy"]["forget"] == pytest.approx(float((model(forget.x).argmax(1) == forget.y).float().mean()))


def test_side_by_side_and_one_after_another_give_the_same_bytes(plan: CellPlan, store: Store, tmp_path: Path) -> None:
    alone, work = Store(tmp_path / "alone"), CellWork(plan, 7)
    wanted = [plan.key(c) for c in (Cell("original", 1), Cell("scores", 1), Cell("cell", 1, 0, "ngp + warp"))]
    for key in wanted:
        alone.write(key, finished(work(next(job for job in plan.jobs if job.key == key), alone)))
        for name in (WEIGHTS, SCORES):
            if name in store.read(key).files:
                assert alone.read(key).read(name) == store.read(key).read(name)


def test_on_another_machine_only_what_is_missing_is_done(plan: CellPlan, store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar", without=["original"])
    other = Store(tmp_path / "other")
    merge(other.root, tmp_path / "p.tar")
    assert all(other.has(job.key) for job in plan.to_do(other))
    assert shadows_complete(plan, other) == 6
    gone = plan.key(Cell("cell", 3, 1, "ngp + kick"))
    other.remove(gone.digest)
    assert shadows_complete(plan, other) == 5
    done = LANES(plan.to_do(other), CellWork(plan, 7), other).done
    assert {str(plan.cells[key.digest]) for key in done} == {"original, shadow 3", "cell, shadow 3, set 1, ngp + kick"}
    assert other.read(gone).read(SCORES) == store.read(gone).read(SCORES)


def test_scores_are_gathered_with_what_each_model_forgot(plan: CellPlan, store: Store) -> None:
    found = cell_arm_scores(plan, store, ARMS[0])
    assert found.confidence.shape == (12, 60)
    for row, (shadow, part) in enumerate((s, p) for s in range(6) for p in range(2)):
        assert set(plan.division.audited[found.forgotten[row]]) == set(plan.forgotten(shadow, part)) & set(
            plan.division.audited
        )
        assert set(plan.division.audited[found.never[row]]) == set(plan.never(shadow)) & set(plan.division.audited)
    assert (found.forgotten | found.never | found.kept).all()
    assert len(found.energy) == found.forgotten.sum()
    originals = cell_original_scores(plan, store)
    assert {a.dtype.name for a in (found.confidence, found.energy, originals.confidence)} == {"float64"}
    assert originals.confidence.shape == (6, 60)
    assert (originals.trained == ~found.never[::2]).all()


def test_the_results_say_what_each_arm_rests_on(plan: CellPlan, store: Store) -> None:
    found = study_results("table1", plan, store)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert set(arms) == {"ngp", "ngp + warp", "ngp + kick", "finetune", "finetune lr=1e+20"}
    assert arms["ngp + kick"]["defense"] == "kick"
    assert set(arms["ngp + warp"]["against"]) == {"kick"}
    assert arms["ngp + warp"]["reduction"] is not None
    assert arms["ngp"]["pair_attacks"]
    assert arms["ngp + warp"]["teleports"]["count"]["value"] == 2
    assert arms["ngp + warp"]["teleports"]["unmoved"] == 0
    assert arms["finetune lr=1e+20"]["diverged"] == 6
    assert arms["finetune lr=1e+20"]["missing"] == 6
    assert arms["finetune"]["diverged"] == 0
    assert found["originals_trained_again"] == []


def copy_of(store: Store, folder: Path) -> Store:
    pack(store, folder / "p.tar")
    other = Store(folder / "other")
    merge(other.root, folder / "p.tar")
    return other


def test_results_say_what_models_were_made_on(plan: CellPlan, store: Store) -> None:
    assert study_results("table1", plan, store)["made_on"] == [f"CPU, torch {torch.__version__.partition('+')[0]}"]


def test_a_shadow_that_only_one_arm_has_begun_takes_no_number_from_it(
    plan: CellPlan, store: Store, tmp_path: Path
) -> None:
    other = copy_of(store, tmp_path)
    begun = Cell("cell", 5, 0, "ngp")
    gone = [cell for cell in plan.cells.values() if cell.shadow == 5 and cell.kind != "original" and cell != begun]
    for cell in gone:
        other.remove(plan.key(cell).digest)
    arms = {arm["name"]: arm for arm in study_results("table1", plan, other)["arms"]}
    assert [arms[name]["shadows"] for name in ("ngp", "ngp + warp")] == [6, 5]
    assert [arms[name]["all"]["shadows"] for name in ("ngp", "ngp + warp")] == [6, 5]
    assert arms["ngp"]["retain_leakage"] is not None

    both = [of_first_shadows(cell_arm_scores(plan, other, arm), 5) for arm in ARMS[:2]]
    base, warp = (tried_audit(scores)[0] for scores in both)
    assert base is not None
    assert warp is not None
    found = base.compare(warp)
    assert arms["ngp + warp"]["reduction"]["shadows"] == 5
    assert arms["ngp + warp"]["reduction"]["difference"]["value"] == found.difference.value
    assert arms["ngp"]["against"]["warp"]["auc"]["value"] == warp.compare(base).difference.value
    originals = cell_original_scores(plan, other)
    ranked = memorisation(originals.confidence, trained=originals.trained)
    expected = base.restricted(most_memorised(ranked, 0.05)).summary()
    assert arms["ngp"]["slices"]["most memorised 5 %"]["auc"]["value"] == expected["auc"]["value"]
    assert arms["ngp"]["slices"]["most memorised 5 %"]["shadows"] == 5


def test_an_original_that_is_scored_before_its_arms_ranks_points_for_them(
    plan: CellPlan, store: Store, tmp_path: Path
) -> None:
    other = copy_of(store, tmp_path)
    for cell in plan.cells.values():
        if cell.shadow == 2 and cell.kind == "cell":
            other.remove(plan.key(cell).digest)
    row = study_results("table1", plan, other)["arms"][0]
    audit = tried_audit(cell_arm_scores(plan, other, ARMS[0]))[0]
    originals = cell_original_scores(plan, other)
    ranked = memorisation(originals.confidence, trained=originals.trained)
    assert audit is not None
    assert list(audit.shadows) == [0, 1, 3, 4, 5]
    expected = audit.restricted(most_memorised(ranked[[0, 1, 3, 4, 5]], 0.05)).summary()
    assert row["slices"]["most memorised 5 %"]["auc"]["value"] == expected["auc"]["value"]
    assert row["retain_leakage"] is not None


def of_first_shadows(scores: ArmScores, count: int) -> ArmScores:
    """The models of the first shadows, as far as an audit looks at them."""
    rows = scores.groups < count
    return replace(
        scores,
        confidence=scores.confidence[rows],
        groups=scores.groups[rows],
        forgotten=scores.forgotten[rows],
        never=scores.never[rows],
    )


def test_a_shadow_whose_original_was_trained_again_is_named(plan: CellPlan, store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar")
    other = Store(tmp_path / "other")
    merge(other.root, tmp_path / "p.tar")
    key = plan.key(Cell("cell", 4, 0, "ngp"))
    files = other.read(key).read_all()
    other.remove(key.digest)
    about = json.loads(files[ABOUT]) | {"original": "another"}
    other.write(key, {**files, ABOUT: json.dumps(about).encode()})
    assert study_results("table1", plan, other)["originals_trained_again"] == [4]


def test_keys_of_version_0_1_hold_for_what_is_as_it_was() -> None:
    known = {
        Cell("original", 1): "cf1c624a7f10efbfed82800fb777200844a4c4507ce45ad83daee8b541e81c29",
        Cell("scores", 1): "da8848fa4ff49759b6f101b5bf19eb7ea74725c6cfe64f6c6f250c65c668a3ec",
        Cell("cell", 1, 0, "ngp"): "076ace1833d5dd3779f45e9ada842c7717a0142c12e69b8865fb5b36f2242f96",
        Cell("cell", 1, 0, "scrub"): "f867ef374533eead6989ea20a18d05a7b825b4a89834abf3a5739902a212de5b",
        Cell("cell", 1, 0, "salun"): "db1d8832681219682957131f689220921695065501d9d48a10db73222a668ba3",
        Cell("cell", 1, 0, "pgu"): "12a519ec868de8bcc10fc6fb36b774451afff612a5a72decf48736e22b670f85",
        Cell("cell", 1, 0, "bad_teacher"): "72e42f130f75efbae99fcae13816af6be47a90cb32c423d3372b6e4b08f13707",
    }
    asked, digits = Asked(shadows=4), load_data("digits")
    now = plan_cells(study_settings("table1", "small", asked), digits, defense_seed=0)
    assert {cell: now.key(cell).digest for cell in known} == known
    before = plan_cells(stored_settings("small", asked), digits, defense_seed=0)
    old = {
        Cell("cell", 1, 0, "srf_on_strict (0.1)"): "09665eb24f99cd954bb0c02849fe37d8f835e22eae70292ad7861e6468fc2b54",
        Cell("cell", 1, 0, "ngp + warp_guarded (0.1)"): (
            "ff4474339577b9b660871c517b6d4bad09c7228921c6a6ed54ed1a6095eb17ba"
        ),
    }
    assert {cell: before.key(cell).digest for cell in known | old} == known | old
    changed = {job.key for job in now.jobs if "srf_on" in now.cells[job.key.digest].arm or "+" in str(job)}
    assert all(key.ingredients["arm"]["algorithm"] == 2 for key in changed)
    assert changed.isdisjoint(job.key for job in before.jobs)


def test_bad_input(settings: CellSettings, data: ImageData) -> None:
    with pytest.raises(InputError, match="unlearns 3 sets of 2"):
        replace(settings, arms=(StudyArm("ngp", sets=3),))
    with pytest.raises(InputError, match="2 arms are called 'ngp'"):
        replace(settings, arms=(StudyArm("ngp", sets=1), StudyArm("ngp", NGP, sets=1)))
    same = replace(settings, arms=(StudyArm("ngp", sets=1), StudyArm("ngp", sets=1, swept={"x": 1.0})))
    with pytest.raises(InputError, match="does the same as"):
        plan_cells(same, data, defense_seed=7)
    with pytest.raises(InputError, match="200 audited points from 120"):
        plan_cells(replace(settings, audited=200), data, defense_seed=7)


def test_work_travels_without_its_data(plan: CellPlan, store: Store) -> None:
    import pickle

    work = CellWork(plan, 7)
    job: Job = next(job for job in plan.jobs if job.key.kind == "scores")
    found = finished(work(job, store))
    assert len(pickle.dumps(work)) < 200_000
    assert finished(pickle.loads(pickle.dumps(work))(job, store)) == found


def test_a_gpu_without_room_is_no_failure_of_the_job(plan: CellPlan, store: Store) -> None:
    class Full(CellWork):
        def _scores(self, cell: Cell, store: Store) -> Steps:
            yield None
            raise torch.OutOfMemoryError("CUDA out of memory")

    job = next(job for job in plan.jobs if job.key.kind == "scores")
    with pytest.raises(NoRoom, match="no room for scores, shadow 0"):
        finished(Full(plan, 7)(job, store))


def test_an_audit_that_finds_memory_taken_is_tried_once_more(
    plan: CellPlan, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = next(job for job in plan.jobs if plan.cells[job.key.digest] == Cell("cell", 0, 0, "ngp + warp"))
    plain, failures = PairAuditor.audit, [1]

    def crowded(self: PairAuditor, *args: object, **options: object) -> object:
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PairAuditor, "audit", crowded)
    found = json.loads(finished(CellWork(plan, 7)(job, store))[ABOUT])
    expected = json.loads(store.read(job.key).read(ABOUT))
    assert not failures
    assert found["pair"]["rows"] == expected["pair"]["rows"]
