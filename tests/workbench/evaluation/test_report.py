"""The page: it stands alone, takes no text for markup, and says what the numbers say."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.evaluation.report import _config, _log, figure_path, write_report
from mcrepar.workbench.evaluation.results import evaluate_run
from mcrepar.workbench.training.run_folder import read_run
from tests.workbench.training.example_runs import a_dataset, a_run, npz, options, results

VOID = {"meta", "img", "br", "link", "input", "hr"}
LOG = """epoch,step,loss,nll,kl,beta,lr,accuracy,val_loss,val_nll,val_accuracy,seconds
1,10,3.5,1.5,2000.5,0.1,0.01,0.5,,,,1.2
2,20,2.5,1.0,1900,0.2,0.01,0.7,2.75,1.1,0.65,1.1
"""
RUN = {
    "status": "finished",
    "command": ["mcrepar", "train", "--out", "my runs/a"],
    "versions": {"torch": "2.13.0"},
    "machine": {"cores": 2},
    "seed": 3,
}
EVIL = ("<script>alert(1)</script>", 'a "quoted" & $cost$', "日本")


class Page(HTMLParser):
    """Tags with their attributes, the text, and whether every element is closed where it was opened."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def a_report(folder, dataset=None, ood=(), log=LOG, run=RUN, config="data: mine\n", note=""):
    opened = a_run(folder, dataset, note=note)
    for name, content in (("log.csv", log), ("run.json", json.dumps(run) if run else ""), ("config.yaml", config)):
        if content:
            (folder / name).write_text(content)
    evaluate_run(opened, options(folder, ood=ood))
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything at once: simulated data, names that look like markup, a foreign set, a log, an unfinished run."""
    folder = tmp_path_factory.mktemp("report")
    words = npz(folder, x=np.zeros((9, 6, 6, 3), np.uint8)) + ",as=black"
    dataset = a_dataset(classes=EVIL, simulated=True)
    return folder / "run", a_report(folder / "run", dataset, (words,), note="the run is stopped")


def test_it_is_well_formed_and_no_id_comes_twice(whole):
    _, page = whole
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert ids
    assert len(ids) == len(set(ids))


def test_it_asks_nothing_of_anyone(whole):
    folder, page = whole
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|url\((?!#)|[\"'(]//", text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "srcset" for name in attributes)
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert (attributes.get("href") or attributes.get("xlink:href") or "#").startswith("#")
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_names_are_text_and_never_markup(whole):
    _, page = whole
    assert "script" not in {tag for tag, _ in page.tags}
    assert EVIL[0] in page.text
    assert EVIL[1] in page.text


def test_who_cannot_see_is_told(whole):
    _, page = whole
    assert page.all("html")[0]["lang"] == "en"
    assert all(image["alt"] for image in page.all("img"))
    drawings = page.all("svg")
    assert len(drawings) == 10
    assert all(drawing["role"] == "img" and len(drawing["aria-label"]) > 20 for drawing in drawings)
    assert all("scope" in head for head in page.all("th"))


def test_light_and_dark_have_the_same_variables(whole):
    folder, _ = whole
    text = (folder / "report.html").read_text(encoding="utf-8")
    light, dark = (set(re.findall(r"(--\w+):", part)) for part in re.findall(r":root \{(.*?)\}", text, re.DOTALL))
    assert "@media (prefers-color-scheme: dark)" in text
    assert light - dark == {"--sans"}
    used = set(re.findall(r"var\((--\w+)\)", text))
    assert used <= light


def test_the_verdict_comes_first_and_is_that_of_the_numbers(whole):
    folder, page = whole
    found, _ = results(folder)
    share = found["in"]["accuracy"]
    assert f"Right in {100 * share:.1f} % of 24 test images" in page.text
    assert page.text.index("Right in") < page.text.index("At each threshold")
    assert "black data look more uncertain than in-distribution data in" in page.text
    for row in found["confidence_sets"]:
        assert f"{100 * row['tau']:g} %" in page.text


def test_what_to_beware_of_is_said(whole):
    _, page = whole
    assert "SIMULATED data" in page.text
    assert "The run is stopped." in page.text
    assert page.text.index("SIMULATED") < page.text.index("The run is stopped.") < page.text.index("At each threshold")


def test_it_tells_how_to_repeat_it(whole):
    folder, page = whole
    assert "mcrepar train --out 'my runs/a'" in page.text
    assert f"mcrepar evaluate {folder} --draws 12" in page.text
    assert "data: mine" in page.text
    assert "torch 2.13.0" in page.text
    assert "seed 3" in page.text


def test_every_figure_is_a_file_too(whole):
    folder, page = whole
    drawn = {a["id"].removeprefix("figure-") for a in page.all("figure") if "id" in a}
    files = {path.stem for path in (folder / "figures").glob("*.png")}
    assert drawn == {name for name in files if not name.startswith("images_")}
    assert {"training_loss", "training_nll", "training_kl", "training_accuracy"} <= drawn
    assert {"images_certain", "images_uncertain", "images_mistakes", "images_black_certain"} <= files


def test_what_is_missing_is_left_out(tmp_path):
    page = a_report(tmp_path / "run", a_dataset((7,)), log="", run=None, config="")  # features, without a place
    assert "How it was trained" not in page.text
    assert "See for yourself" not in page.text
    assert "SIMULATED" not in page.text
    assert "mcrepar train --config" in page.text
    assert page.all("img") == []
    assert not list((tmp_path / "run" / "figures").glob("images*"))


@pytest.mark.parametrize("log", ["", "epoch,loss\n", "epoch,loss\n1,abc\n", "\x00", "epoch,loss\n1,2,3\n"])
def test_a_strange_log_is_no_log(tmp_path, log):
    (tmp_path / "log.csv").write_text(log)
    assert not any(len(column) for column in _log(tmp_path).values())


def test_empty_cells_of_the_log_are_no_numbers(tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    log = _log(tmp_path)
    np.testing.assert_array_equal(log["epoch"], [1, 2])
    np.testing.assert_array_equal(log["val_loss"], [np.nan, 2.75])


def test_regression_has_a_page_of_its_own(tmp_path):
    page = a_report(tmp_path / "run", a_dataset(classes=()), log=LOG.replace("accuracy", "rmse"))
    assert "The 90 % intervals hold" in page.text
    assert "At each threshold" not in page.text
    assert "Root mean squared error" in page.text
    assert page.open == []


def test_a_run_that_was_not_evaluated(tmp_path):
    with pytest.raises(ParameterError, match=r"there is no metrics\.json. Use mcrepar evaluate"):
        write_report(tmp_path)
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(ParameterError, match=r"there is no predictions\.npz"):
        write_report(tmp_path)
    np.savez(tmp_path / "predictions.npz", y=np.zeros(1))
    with pytest.raises(ParameterError, match="of another form"):
        write_report(tmp_path)
    (tmp_path / "metrics.json").write_text('{"in": ')
    with pytest.raises(ParameterError, match="cannot be read"):
        write_report(tmp_path)
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "predictions.npz").write_bytes(b"PK nothing")
    with pytest.raises(ParameterError, match="cannot be read"):
        write_report(tmp_path)


def test_a_name_that_leads_out_of_the_folder_is_refused_before_anything_is_written(tmp_path):
    run, evil = tmp_path / "run", "x/../../evil"
    a_report(run, ood=[npz(tmp_path, x=np.zeros((9, 6, 6, 3), np.uint8)) + ",as=black"])
    found, arrays = results(run)
    (run / "metrics.json").write_text(json.dumps({**found, "ood": {evil: found["ood"]["black"]}}))
    np.savez(run / "predictions.npz", **{key.replace("ood_black", f"ood_{evil}"): a for key, a in arrays.items()})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ParameterError, match="cannot be a part of a file name"):
        write_report(run)
    assert sorted(tmp_path.rglob("*")) == before


def test_figures_that_are_linked_elsewhere_are_not_followed(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "precious"
    a_report(run)
    shutil.rmtree(run / "figures")
    outside.mkdir()
    (run / "figures").symlink_to(outside)
    with pytest.raises(ParameterError, match="symbolic link"):
        write_report(run)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\x00"])
def test_a_run_that_says_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {}


def test_text_that_is_not_there(tmp_path):
    assert _config(tmp_path) == ""
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    assert _config(tmp_path) == ""


@pytest.mark.parametrize("name", ["x/../../evil", "..", "a b", "", "/evil", "x\\y", "a\n", "a\0"])
def test_a_figure_is_written_inside_the_folder_or_not_at_all(name, tmp_path):
    with pytest.raises(ParameterError, match="cannot be a part of a file name"):
        figure_path(tmp_path, name)
    assert figure_path(tmp_path, "images_svhn-2_wrong") == tmp_path / "figures" / "images_svhn-2_wrong.png"
