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

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.images import read_pictures
from warp_unlearning.report.page import make_report, write_report
from warp_unlearning.report.read import read as read_results
from warp_unlearning.report.schema import Reconstruction

HOSTILE = "<script>alert(1)</script>$\\frac{\"'&\x00\x1b\u202e\ud800]]>--> 日本"
# Not looked at by a report.
UNREAD = {"paths", "position", "per_image", "shares", "decoys", "tests"}
FREE = ("settings", "digests", "versions", "method_settings", "not_tried", "counts")


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
            assert vars(attack.scores["psnr"]) == row["scores"]["summary"]["psnr"]
            assert vars(attack.blind["prior alone"]["ssim"]) == row["blind"]["prior alone"]["summary"]["ssim"]
            assert vars(attack.gain) == row["beyond"]["psnr_gain"][row["beyond"]["best_blind"]]
            assert vars(attack.share) == row["beyond"]["identification"]["share"]
    assert [model.outcome for model in found.models] == ["does not hold", "does not hold"]
    assert found.models[1].attacks[0].outcome == "cannot be said"


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


def places(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    if path:
        yield path
    if isinstance(value, dict) and (not path or path[-1] not in FREE):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def required(data: dict[str, Any]) -> list[tuple[str | int, ...]]:
    found = []
    for path in places(data):
        read = isinstance(path[-1], str) and (len(path) == 1 or not UNREAD & set(path))
        # Which blind attacks there are is for the file to say; of the gains, that over the best is read.
        optional = path[-2:-1] == ("blind",) or ("psnr_gain" in path[:-1] and "class mean" not in path)
        if read and not optional:
            found.append(path)
    return found


def test_every_missing_field_and_every_wrong_type_is_named(plain, write):
    plain["models"], plain["verdict"] = plain["models"][:1], {"claims": [{"outcome": "holds"}]}
    paths = required(plain)[1:]
    assert len(paths) > 50
    for path in paths:
        holder: Any = plain
        for key in path[:-1]:
            holder = holder[key]
        kept = holder.pop(path[-1])
        with pytest.raises(DataError, match=re.escape(f"no field {path[-1]!r}")):
            read_results(write(plain))
        if path[-1] in ("settings", "digests", "versions", "method_settings"):
            holder[path[-1]] = kept
            continue
        holder[path[-1]] = {"unheard": []} if not isinstance(kept, dict) else 3
        with pytest.raises(DataError, match=re.escape(str(path[-1]))):
            read_results(write(plain))
        holder[path[-1]] = kept


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.update(models=[]), "at least one model"),
        (lambda data: data["models"][0].update(attacks=[]), "at least one attack"),
        (lambda data: data["models"][0].update(rows=[0, 6]), "places among the 6 images"),
        (lambda data: data["models"][0].update(rows=[]), "places among the 6 images"),
        (lambda data: data["verdict"]["claims"][0].update(outcome="leak"), "'does not hold' or"),
        (lambda data: data["verdict"]["claims"].pop(), "a claim on each"),
        (lambda data: data["targets"][0].update(label=6), "labels of the 6 classes"),
        (lambda data: data["counts"].pop("forgotten together"), "no field 'forgotten together'"),
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
