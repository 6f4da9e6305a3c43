"""A study from its configuration to its table, at a size that takes seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.config import ReproduceConfig
from warp_unlearning.errors import InputError
from warp_unlearning.gpu.lanes import Lane
from warp_unlearning.runs.directory import open_run
from warp_unlearning.runs.drain import drain_nothing
from warp_unlearning.runs.local import Lanes, run_here
from warp_unlearning.runs.store import Store
from warp_unlearning.studies import study
from warp_unlearning.studies.cell_settings import StudyArm
from warp_unlearning.studies.study import NULL_SPACE, STUDIES, Asked, Size, study_settings
from warp_unlearning.workflows.reproduce import (
    RESULTS,
    TABLE,
    ReproduceRequest,
    _hardware,
    carry_out_study,
    prepare_study,
)

LANES = partial(run_here, lanes=Lanes(2, lambda: Lane(torch.device("cpu"))))
NGP = {"epochs": 2, "batch_size": 16}
TINY = Size({"name": "npz"}, "mlp", {"hidden": [8]}, {"epochs": 5, "batch_size": 16}, 6, 2, 2, 60, 20, 0, 20)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.SIZES, "small", TINY)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(0)
    y = np.arange(160) % 3
    x = (generator.normal(size=(160, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    np.savez(path, x=x[:120], y=y[:120], x_test=x[120:], y_test=y[120:])
    return path


def config(blobs: Path, **changes: Any) -> ReproduceConfig:
    given = {"study": "table1", "size": "small", "data_path": blobs, "methods": ["ngp"], "device": "cpu"}
    return ReproduceConfig(**{**given, "method_options": {"ngp": NGP}, **changes})


def arms_of(size: str) -> Sequence[StudyArm]:
    return study_settings("table1", size, Asked()).arms


def reproduce(request: ReproduceRequest, **options: Any) -> dict[str, Any]:
    return carry_out_study(prepare_study(request), LANES, **options)


def test_a_study_is_stopped_goes_on_and_grows(blobs: Path, tmp_path: Path) -> None:
    request = ReproduceRequest(config(blobs), tmp_path / "out")
    results = reproduce(request, budget=0.0)
    assert not results["complete"]
    assert results["left"] == 6 * (1 + 1 + 2 * 7)
    assert all(arm["problem"] for arm in results["arms"])
    results = reproduce(request, command="warp reproduce table1")
    assert results["complete"]
    assert not results["failures"]
    assert results["shadows_complete"] == 6
    defenses = ["warp", "fastwarp", "warp_guarded", "cob", "conjugate", "kick"]
    assert [arm["name"] for arm in results["arms"]] == ["ngp", *(f"ngp + {name}" for name in defenses)]
    table = (tmp_path / "out" / TABLE).read_text()
    assert "NGP + WARP" in table
    assert "paper 0.545" in table
    assert (tmp_path / "out" / "figures" / "table1.svg").read_bytes().lstrip().startswith(b"<")
    assert json.loads((tmp_path / "out" / RESULTS).read_text())["commands"] == ["warp reproduce table1"]
    before = set(Store(tmp_path / "out" / "store").digests())
    larger = reproduce(ReproduceRequest(config(blobs, shadows=8), tmp_path / "out"))
    assert larger["complete"]
    assert len(set(Store(tmp_path / "out" / "store").digests()) - before) == 2 * (1 + 1 + 2 * 7)


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_plan_touches_nothing(blobs: Path, tmp_path: Path) -> None:
    prepare_study(ReproduceRequest(config(blobs), tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    few = config(blobs, defenses=["none"])
    assert reproduce(ReproduceRequest(few, tmp_path / "out"))["complete"]
    before = listing(tmp_path / "out")
    prepare_study(ReproduceRequest(few, tmp_path / "out"))
    prepare_study(ReproduceRequest(config(blobs), tmp_path / "out"))
    assert listing(tmp_path / "out") == before
    open_run(tmp_path / "out")


def test_a_damaged_result_is_made_again_before_results_are_written(blobs: Path, tmp_path: Path) -> None:
    few = config(blobs, defenses=["none"])
    first = reproduce(ReproduceRequest(few, tmp_path / "out"))
    prepared = prepare_study(ReproduceRequest(few, tmp_path / "out"))
    for key in [job.key for job in prepared.planned.to_do(prepared.store)][3:5]:
        path = prepared.store.path(key.digest)
        path.write_bytes(path.read_bytes()[:-1])
    again = carry_out_study(prepared, LANES)
    assert again["complete"]
    assert again["arms"][0]["all"] == first["arms"][0]["all"]
    open_run(tmp_path / "out")
    # Where nothing may be done, what is damaged is missing.
    path.write_bytes(b"")
    missing = carry_out_study(prepare_study(ReproduceRequest(few, tmp_path / "out", only_results=True)), drain_nothing)
    assert missing["complete"]  # The sealed results stay.
    open_run(tmp_path / "out")


def test_of_two_studies_in_one_folder_the_later_keeps_it(blobs: Path, tmp_path: Path) -> None:
    first = prepare_study(ReproduceRequest(config(blobs, defenses=["none"]), tmp_path / "out"))
    grown = config(blobs, defenses=["none", "cob"])

    def meanwhile(*given: Any, **options: Any) -> Any:
        assert reproduce(ReproduceRequest(grown, tmp_path / "out"))["complete"]
        return LANES(*given, **options)

    with pytest.raises(InputError, match="was started with other settings meanwhile"):
        carry_out_study(first, meanwhile)
    assert len(open_run(tmp_path / "out").read_json(RESULTS)["arms"]) == 2


@pytest.mark.parametrize("name", ["whitebox", "radar", "risk-vs-norm"])
def test_studies_of_the_same_models_share_them(blobs: Path, tmp_path: Path, name: str) -> None:
    first = prepare_study(ReproduceRequest(config(blobs), tmp_path / "a", tmp_path / "store"))
    second = prepare_study(ReproduceRequest(config(blobs, study=name), tmp_path / "b", tmp_path / "store"))
    keys = [{job.key for job in p.planned.to_do(p.store)} for p in (first, second)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("size", study.SIZES)
def test_every_study_has_arms_that_can_be_made(name: str, size: str) -> None:
    from warp_unlearning.defense.registry import make_defense
    from warp_unlearning.methods.registry import make_method

    settings = study_settings(name, size, Asked(method_options={"ngp": {"lr": 0.02}}))
    assert len(settings.arms) > 2
    for arm in settings.arms:
        make_method(arm.method, **arm.method_settings)
        if arm.defense is not None:
            make_defense(arm.defense, **arm.defense_settings)
        if arm.method == "ngp" and arm.swept.get("lr_factor", 1.0) == 1.0:
            assert arm.method_settings["lr"] == 0.02


def test_defences_can_be_chosen_and_change_no_key(blobs: Path, tmp_path: Path) -> None:
    whole = prepare_study(ReproduceRequest(config(blobs), tmp_path / "whole")).planned
    some = prepare_study(ReproduceRequest(config(blobs, defenses=["warp", "none"]), tmp_path / "some")).planned
    keys = [{job.key for job in plan.to_do(Store(tmp_path / "empty"))} for plan in (whole, some)]
    assert keys[1] < keys[0]
    assert [arm.name for arm in study_settings("table1", "paper", Asked(("ngp",), ["warp", "none"])).arms] == [
        "ngp",
        "ngp + warp",
    ]


def test_the_size_of_the_paper() -> None:
    settings = study_settings("table1", "paper", Asked())
    assert settings.shadows >= 32
    assert {arm.method: arm.sets for arm in settings.arms} == {
        "ngp": 10, "scrub": 4, "salun": 4, "pgu": 4, "bad_teacher": 10, "srf_on": 4
    }  # fmt: skip
    assert settings.training["epochs"] == 91
    assert settings.audited == 5000
    assert settings.network_options == {"stem": "imagenet"}


def test_only_pgu_on_images_teleports_other_than_each_epoch() -> None:
    for size, expected in (("paper", 95), ("small-images", 10), ("small", None)):
        found = {a.name: a.defense_settings["every"] for a in arms_of(size) if "every" in a.defense_settings}
        assert found == ({} if expected is None else {f"pgu + {name}": expected for name in NULL_SPACE})
    asked = Asked(("pgu",), defense_options={"warp": {"every": 19}})
    assert study_settings("table1", "paper", asked).arms[1].defense_settings["every"] == 19


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": 100}, "pairs is 100 and there are 6 shadows; give at most one pair for each"),
        ({"study": "tabel1"}, "table1"),
        ({"shadows": 4}, "--shadows 6 or more"),
        ({"forget_sets": 3}, "unlearns 3 sets of 2"),
        ({"size": "paper", "data_path": None}, "--data-path"),
        ({"methods": ["npg"]}, "ngp"),
        ({"defenses": ["none", "wrap"]}, "warp"),
        ({"recipes": Path("nowhere.yaml")}, "nowhere.yaml"),
        ({"size": "small-images", "data_path": None}, "/usr/share/datasets/fashion-mnist"),
        ({"made_with": "0.1"}, "can only be read; add --only-results"),
    ],
    ids=str,
)
def test_bad_input(blobs: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_study(ReproduceRequest(config(blobs, **changes), tmp_path / "out"))


def test_without_a_gpu_the_cost_is_said(blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.SIZES, "paper", TINY)  # type: ignore[arg-type]
    request = ReproduceRequest(config(blobs, size="paper"), tmp_path / "out")
    with pytest.raises(InputError, match=r"no GPU, and training the 6 originals alone would take about [\d,]+ hours"):
        prepare_study(request)
    assert prepare_study(ReproduceRequest(request.config, request.out, anyway=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is the device that is to be missing")
def test_results_of_a_device_that_is_not_here_can_be_read(blobs: Path, tmp_path: Path) -> None:
    asked = config(blobs, device="cuda")
    with pytest.raises(InputError, match="cuda"):
        prepare_study(ReproduceRequest(asked, tmp_path / "out"))
    prepared = prepare_study(ReproduceRequest(asked, tmp_path / "out", only_results=True))
    first = prepared.planned.to_do(prepared.store)[1]
    prepared.store.write(first.key, {"scores.npz": b"", "about.json": b"{}"}, seconds=1.0)
    outcome = drain_nothing(prepared.planned.to_do(prepared.store), prepared.planned.work, prepared.store)
    assert outcome.found == (first.key,)
    assert not outcome.complete
    results = carry_out_study(
        prepare_study(ReproduceRequest(asked, tmp_path / "other", only_results=True)), drain_nothing
    )
    assert results["left"] == 6 * (1 + 1 + 2 * 7)
    assert "other machines" in results["hardware"]["device"]
    assert (tmp_path / "other" / TABLE).is_file()


def test_results_of_version_0_1_are_read_under_names_of_their_own(blobs: Path, tmp_path: Path) -> None:
    asked = config(blobs, made_with="0.1", methods=["ngp", "srf_on"], defense_options={"warp": {"radius": 0.3}})
    results = reproduce(ReproduceRequest(asked, tmp_path / "out", only_results=True), budget=0.0)
    assert [arm["name"] for arm in results["arms"]] == [
        *("ngp", "ngp + warp_guarded (0.1)"),
        *("srf_on_strict (0.1)", "srf_on_strict (0.1) + warp_guarded (0.1)"),
    ]
    table = (tmp_path / "out" / TABLE).read_text()
    assert "| NGP | not measured; paper 0.545" in table
    assert "| SF strict (0.1) | not measured |" in table
    assert "| NGP + WARP guarded (0.1) | not measured |" in table
    assert "Arms named (0.1)" in table
    with pytest.raises(InputError, match=r"results of version 0\.1 are kept of table1, .* not of tradeoff"):
        prepare_study(ReproduceRequest(config(blobs, study="tradeoff", made_with="0.1"), tmp_path, only_results=True))
    with pytest.raises(InputError, match=r"version 0\.1 had no arms with the defence 'cob'"):
        prepare_study(
            ReproduceRequest(config(blobs, defenses=["cob"], made_with="0.1"), tmp_path / "cob", only_results=True)
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": "radar"}, "holds a study with study table1, not radar"),
        ({"seed": 4}, "holds a study with seed 0, not 4"),
        ({"methods": ["scrub"], "method_options": {}}, "results of methods that are left out here, ngp"),
        ({"defenses": ["none"]}, "results of defenses that are left out here, warp"),
        ({"shadows": 6}, "holds a study of 8 shadows, not 6"),
    ],
)
def test_a_table_is_not_written_over_by_one_that_leaves_out_what_it_has(
    blobs: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    first: dict[str, Any] = {"defenses": ["none", "warp"], "shadows": 8}
    reproduce(ReproduceRequest(config(blobs, **first), tmp_path / "out"), budget=0.0)
    before = (tmp_path / "out" / "config.yaml").read_bytes()
    with pytest.raises(InputError, match=message):
        prepare_study(ReproduceRequest(config(blobs, **first | changes), tmp_path / "out"))
    assert (tmp_path / "out" / "config.yaml").read_bytes() == before
    more = first | {"defenses": ["none", "warp", "kick"], "shadows": 10}
    prepare_study(ReproduceRequest(config(blobs, **more), tmp_path / "out"))


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "a: 1\na: 2\n"])
def test_a_folder_whose_configuration_cannot_be_read_is_left_alone(blobs: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml (is damaged: .*|holds no settings.*); give another --out"):
        prepare_study(ReproduceRequest(config(blobs), tmp_path))
    assert (tmp_path / "config.yaml").read_text() == text


def test_a_folder_of_something_else_is_left_alone(blobs: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds files and no study"):
        prepare_study(ReproduceRequest(config(blobs), tmp_path / "out"))


def test_results_may_be_merged_before_a_study_is_begun(blobs: Path, tmp_path: Path) -> None:
    assert Store(tmp_path / "out" / "store").identity
    prepared = prepare_study(ReproduceRequest(config(blobs), tmp_path / "out"))
    assert [path.name for path in prepared.out.iterdir()] == ["store"]
    carry_out_study(prepared, LANES, budget=0.0)
    assert (tmp_path / "out" / "config.yaml").is_file()
    assert Store(tmp_path / "other" / "store").identity
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds files and no study"):
        prepare_study(ReproduceRequest(config(blobs), tmp_path / "other"))


def test_a_study_of_times_is_done_alone_and_shown(blobs: Path, tmp_path: Path) -> None:
    prepared = prepare_study(ReproduceRequest(config(blobs, study="runtime"), tmp_path / "out"))
    assert prepared.planned.alone
    results = carry_out_study(prepared, run_here)
    assert results["complete"]
    assert [row["defense"] for row in results["rows"]] == list(study.DEFENSES)
    assert "NGP + WARP" in (tmp_path / "out" / TABLE).read_text()


def test_of_a_gpu_the_name_is_that_of_the_machine_that_made_the_models() -> None:
    made_on = ["NVIDIA H200, torch 2.11.0", "NVIDIA L4, torch 2.13.0"]
    assert _hardware(made_on, gpu=True) == {"device": "NVIDIA H200, torch 2.11.0; NVIDIA L4, torch 2.13.0"}
    assert _hardware([], gpu=False)["device"] == "CPU"
    assert _hardware([], gpu=False)["cores"] > 0
