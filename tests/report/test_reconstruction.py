import base64
import io
import json
import re
from copy import deepcopy
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.data.files import to_json
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.images import read_pictures
from warp_unlearning.report.page import make_report, write_report
from warp_unlearning.report.read import read as read_results
from warp_unlearning.report.schema import Reconstruction
from warp_unlearning.stats.verdict import Claim, Verdict

HOSTILE = "<script>alert(1)</script>$\\frac{\"'&\x00\x1b\u202e\ud800]]>--> 日本"


def _sample(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = spec_from_file_location("sample", Path(__file__).with_name("sample_reconstruction.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[dict[str, Any], dict[str, Any]] = module.reconstruction_sample(**options)
    return found


@pytest.fixture(scope="module")
def sample() -> tuple[dict[str, Any], dict[str, Any]]:
    return _sample()


@pytest.fixture
def plain(sample) -> dict[str, Any]:
    return deepcopy(sample[0])


@pytest.fixture
def write(tmp_path: Path, sample) -> Any:
    def put(data: dict[str, Any], arrays: dict[str, Any] | None = None) -> Path:
        (tmp_path / "results.json").write_text(json.dumps(data))
        np.savez(tmp_path / "images.npz", **(sample[1] if arrays is None else arrays))
        return tmp_path

    return put


def text_of(html: str) -> str:
    bare = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare)).replace("\u00a0", " ")


def test_numbers_arrive_as_they_were_written(plain, write):
    found = read_results(write(plain))
    assert isinstance(found, Reconstruction)
    for model, data in zip(found.models, plain["models"], strict=True):
        assert (model.name, model.defense, model.rows) == (data["name"], data["defense"], tuple(data["rows"]))
        for attack, row in zip(model.attacks, data["attacks"], strict=True):
            assert vars(attack.scores.summary["psnr"]) == row["scores"]["summary"]["psnr"]
            assert vars(attack.blind["prior alone"].summary["ssim"]) == row["blind"]["prior alone"]["summary"]["ssim"]
            assert (
                vars(attack.beyond.psnr_gain[attack.beyond.best_blind])
                == row["beyond"]["psnr_gain"][row["beyond"]["best_blind"]]
            )
            assert vars(attack.beyond.identification.share) == row["beyond"]["identification"]["share"]
    assert [found.claim_on(model) for model in found.models] == ["does not hold", "does not hold"]
    assert found.outcome_of(found.models[1], found.models[1].attacks[0]) == "cannot be said"


def test_the_page_says_who_attacked_what_and_what_was_rebuilt(plain, write):
    results = read_results(write(plain))
    html = make_report(results).html
    text = text_of(html)
    first = html[html.index('<p class="opening">') : html.index("<nav")]
    for lead in ("What was attacked:", "Who attacked:", "What was rebuilt:", "The images:"):
        assert lead in first
    assert "Forgotten images can be rebuilt, at least in part" in html
    assert "The attacker holds both models." in first
    assert "expects" not in first
    inversion = plain["models"][0]["attacks"][0]
    psnr = inversion["scores"]["summary"]["psnr"]
    assert "After “ngp”, the attack showed more of the images than is known without the models. “inversion”" in text
    assert f"a mean PSNR of {psnr['value']:.1f} dB, where the class mean, which saw nothing, has " in text
    assert f"{psnr['value']:.2f} [{psnr['low']:.2f}, {psnr['high']:.2f}]" in text
    blind = inversion["blind"]["prior alone"]["summary"]["psnr"]
    assert f"prior alone saw nothing – {blind['value']:.2f} [{blind['low']:.2f}, {blind['high']:.2f}]" in text
    assert "After “ngp + cob”, 1 of 2 attacks showed more" in text
    for said in (
        "a note on all",
        "ngp + cob: a note on ngp + cob",
        "ngp, inversion: a note on inversion",
        "adaptive on ngp + cob: no step is known",
        "The attacker expects cob.",
        "NGP with change of basis: lr = 0.01",
        "p, corrected",
        "2026-01-02 03:04 UTC",
    ):
        assert said in text, said
    # Neither where the runs lie nor which examples they forgot.
    assert "/secret/place" not in html
    assert "8675309" not in html


def test_blind_attacks_are_shown_once_unless_they_differ(plain, write):
    other = deepcopy(plain["models"][1]["attacks"][1])
    other["blind"]["prior alone"]["summary"]["psnr"]["value"] += 1
    plain["models"][1]["attacks"][1] = other
    html = make_report(read_results(write(plain))).html
    headings = re.findall(r'<th scope="row">([^<]*)<span class="under">saw nothing', html)
    names = [heading.strip() for heading in headings]
    assert names == ["class mean", "prior alone", "class mean", "prior alone", "prior alone of canonical"]


@pytest.mark.parametrize(
    ("said", "headline", "mark", "words"),
    [
        ("does not hold", "can be rebuilt", "leak", "attacks showed more of the images"),
        ("holds", "No attack rebuilt more", "clean", "none of 2 attacks showed more"),
        ("cannot be said", "Too few images to say", "open", "it is open whether"),
    ],
)
def test_the_worst_verdict_is_the_headline(plain, write, said, headline, mark, words):
    for model, claim in zip(plain["models"], plain["verdict"]["claims"], strict=True):
        claim["outcome"] = said
        for attack in model["attacks"]:
            attack["adjusted_p"] = 0.01 if said == "does not hold" else 0.5
    verdict = Verdict(tuple(Claim(**claim) for claim in plain["verdict"]["claims"]), (), "drawn", (), 6, 30)
    plain["verdict"] = to_json(verdict.as_json())
    html = make_report(read_results(write(plain))).html
    assert headline in html[html.index("<h1>") : html.index("</h1>")]
    assert f'class="verdict {mark}"' in html
    assert words in text_of(html)
    assert re.search(r"After “ngp \+ cob”[^“]*“canonical” came nearest", text_of(html))


def test_one_image_has_no_interval_and_is_no_pass(tmp_path):
    data, _ = _sample(images=1)
    (tmp_path / "results.json").write_text(json.dumps(data))
    text = text_of(make_report(read_results(tmp_path)).html)
    assert "one image has no interval" in text
    assert "which is not a pass" in text
    assert "[interval unknown]" in text


def test_without_pictures_the_page_has_none(plain, write):
    report = make_report(read_results(write(plain)))
    assert "<img" not in report.html
    assert "data:" not in report.html
    assert "were left out, so that this page can be shared" in report.html
    assert "a results file alone" in report.html
    assert "did not keep them" in make_report(read_results(write(plain | {"images_kept": False}))).html
    assert len(report.figures) == 2


def test_with_pictures_each_is_the_image_in_its_place(plain, write, sample):
    folder = write(plain)
    results = read_results(folder)
    html = make_report(results, pictures=read_pictures(results, folder)).html
    assert html.count("This page holds images of forgotten examples") == 1
    assert "this page holds images of forgotten examples. Do not share it" in html
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="([^"]*)">', html)
    found = {alt: base64.b64decode(data) for data, alt in pictures}
    assert len(found) == 6 + 6 + 6 + 5 + 5
    for alt, array, row in (
        ("image 3, original", "truth", 2),
        ("image 6, class mean, saw nothing", "class-mean", 5),
        ("image 1, ngp: inversion", "found-0", 0),
        ("image 5, ngp + cob: canonical", "found-2", 4),
    ):
        with Image.open(io.BytesIO(found[alt])) as picture:
            assert np.array_equal(np.asarray(picture), sample[1][array][row, 0])
    style = re.search(r"<style>(.*)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    style = f"style-src 'sha256-{digest}'; style-src-attr 'unsafe-inline'"
    policy = f"default-src 'none'; img-src data:; {style}; base-uri 'none'; form-action 'none'"
    assert f'content="{policy}"' in html


def test_images_of_three_channels_are_in_colour(plain, write, sample):
    arrays = {name: np.repeat(array, 3, 1) for name, array in sample[1].items()}
    arrays["truth"][0] = np.arange(108, dtype=np.uint8).reshape(3, 6, 6)
    folder = write(plain, arrays)
    first = read_pictures(read_results(folder), folder).rows[0][0]
    with Image.open(io.BytesIO(base64.b64decode(first.uri.partition(",")[2]))) as picture:
        assert np.array_equal(np.asarray(picture).transpose(2, 0, 1), arrays["truth"][0])


def test_the_page_with_images_has_another_name_and_is_its_owners_alone(plain, write):
    folder = write(plain)
    assert write_report(folder).page.name == "results.html"
    page = write_report(folder, images=True).page
    assert page.name == "results-with-images.html"
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.read_bytes() == write_report(folder, images=True).page.read_bytes()
    assert "<img" not in (folder / "results.html").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda arrays: arrays.pop("truth"), "no 6 images 'truth'"),
        (lambda arrays: arrays.pop("found-2"), "no 5 images 'found-2'"),
        (lambda arrays: arrays.update(truth=arrays["truth"][:5]), "no 6 images 'truth'"),
        (lambda arrays: arrays.update(truth=arrays["truth"].astype(np.float32)), "no 6 images 'truth'"),
        (lambda arrays: arrays.update(truth=arrays["truth"][:, :, :5]), "different sizes"),
    ],
)
def test_damaged_images_are_refused(plain, write, sample, change, says):
    arrays = dict(sample[1])
    change(arrays)
    with pytest.raises(DataError, match=says):
        write_report(write(plain, arrays), images=True)


def test_images_that_are_not_there_are_refused(plain, write, pair_data, tmp_path):
    folder = write(plain | {"images_kept": False})
    with pytest.raises(InputError, match="did not keep its images"):
        write_report(folder, images=True)
    folder = write(plain)
    (folder / "images.npz").write_bytes((folder / "images.npz").read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read"):
        write_report(folder, images=True)
    np.savez(folder / "images.npz", truth=np.array([object()]))
    with pytest.raises(DataError, match="cannot be read"):
        write_report(folder, images=True)
    (folder / "images.npz").unlink()
    with pytest.raises(InputError, match="there are no images"):
        write_report(folder, images=True)
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(pair_data))
    with pytest.raises(InputError, match="pair audit, which has no images"):
        write_report(tmp_path / "audit", images=True)
    assert not list(tmp_path.rglob("*.html"))


def test_hostile_text_is_text(plain, write):
    for model in plain["models"]:
        model |= {"name": HOSTILE, "method": HOSTILE, "method_settings": {HOSTILE: HOSTILE}, "threat": [HOSTILE]}
        model |= {"not_tried": {HOSTILE: HOSTILE}, "notes": [HOSTILE]}
        for attack in model["attacks"]:
            attack |= {"name": HOSTILE, "notes": [HOSTILE]}
            attack["beyond"]["text"] = HOSTILE
    plain["classes"][0] = HOSTILE
    plain |= {"data": HOSTILE, "date": HOSTILE, "notes": [HOSTILE], "digests": {HOSTILE: HOSTILE}}
    folder = write(plain)
    results = read_results(folder)
    report = make_report(results, pictures=read_pictures(results, folder))
    assert "<script" not in report.html
    report.html.encode()
    assert not re.findall(r'<img src="(?!data:image/png;base64,[A-Za-z0-9+/=]+")', report.html)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name, _ in report.figures)
    levels = [int(level) for level in re.findall(r"<h([1-6])", report.html)]
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("path", ["data", "models.0.rows", "models.0.attacks.0.adjusted_p", "verdict.claims"])
def test_a_missing_field_and_a_wrong_type_are_named(plain, write, path):
    *parents, name = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = plain
    for key in parents:
        holder = holder[key]
    kept = holder.pop(name)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"results\.json: .*{parents[0] if parents else name}"):
            read_results(write(plain))
        holder[name] = {"unheard": []} if not isinstance(kept, dict) else 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.update(models=[]), "0 models have 2 claims"),
        (lambda data: data["models"][0].update(attacks=[]), "needs an attack"),
        (lambda data: data["models"][0].update(rows=[0, 6]), "rows among the 6 targets"),
        (lambda data: data["models"][0].update(rows=[]), "rows among the 6 targets"),
        (lambda data: data["verdict"]["claims"][0].update(outcome="leak"), "verdict"),
        (lambda data: data["verdict"]["claims"].pop(), "verdict"),
        (lambda data: data["targets"][0].update(label=6), "beyond the 6 classes"),
        (lambda data: data["counts"].pop("forgotten together"), "forgotten together"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(plain, write, change, says):
    change(plain)
    with pytest.raises(DataError, match=says):
        read_results(write(plain))


def test_an_identification_that_was_not_made_is_not_measured(plain, write):
    for model in plain["models"]:
        for attack in model["attacks"]:
            attack["beyond"]["identification"] = None
    assert "not measured" in make_report(read_results(write(plain))).html
