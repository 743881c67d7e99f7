"""The page that needs no server: whole, self-contained, written at once or not at all."""

import base64
import gzip
import html
import json
import re

import pytest
from torch import nn

import mcrepar
from mcrepar.errors import ParameterError
from mcrepar.workbench.app.export import export_page
from mcrepar.workbench.app.server import Answers
from mcrepar.workbench.app.views import all_views
from tests.workbench.app.example_run import write_run

STORED = {
    "quality": {"iterations": ("1000", "10"), "entropy": ("exact", "mc")},
    "graph": {"posterior": ("radial",), "prior": ("normal", "laplace")},
}


def stored_in(page: str) -> dict:
    packed = re.search(r'<script id="stored" type="text/plain">([^<]+)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return export_page(tmp_path_factory.mktemp("export") / "app.html", stored=STORED).read_text(encoding="utf-8")


def test_every_case_has_its_answer(page):
    found, views = stored_in(page), all_views(None)
    assert set(found) == {"quality", "graph"}
    assert set(found["quality"]) == {'["1000","exact"]', '["1000","mc"]', '["10","exact"]', '["10","mc"]'}
    texts = {"iterations": "10", "entropy": "mc"}
    live = Answers(views).reply(views["quality"], texts, again=False)
    assert found["quality"]['["10","mc"]']["answer"] == json.loads(json.dumps(live["answer"]))
    assert found["quality"]['["10","mc"]']["link"] == "view=quality&iterations=10&entropy=mc"


def test_a_pair_that_is_refused_says_why(page):
    assert "Theorem F" in stored_in(page)["graph"]['["radial","laplace"]']["notice"]


def test_nothing_is_fetched(page):
    own = html.unescape(re.sub(r"<script>.*?</script>", "", page, flags=re.S))
    assert not re.search(r'(src|href)="(?!\?|#|data:)', own)
    assert "default-src 'none'" in own
    assert "shiny.js" not in own


def test_only_what_is_stored_can_be_chosen(page):
    assert re.findall(r'data-control="(\w+)"', page) == ["iterations", "entropy", "posterior", "prior"]
    assert 'id="view-memory"' not in page


def test_runs_go_in_where_there_are_some(tmp_path):
    write_run(tmp_path / "runs" / "one")
    stored = {"run": {"run": ("one",), "threshold": ("0.9",)}}
    page = export_page(tmp_path / "app.html", tmp_path / "runs", stored).read_text(encoding="utf-8")
    assert str(tmp_path) not in page
    answer = stored_in(page)["run"]['["one","0.9"]']["answer"]
    assert answer["galleries"][0]["pictures"]


def test_networks_go_in_too(tmp_path):
    mcrepar.save(mcrepar.bayesian(nn.Linear(2, 1)), tmp_path / "runs" / "mine")
    stored = {"network": {"network": ("mine",)}}
    page = export_page(tmp_path / "app.html", tmp_path / "runs", stored).read_text(encoding="utf-8")
    assert stored_in(page)["network"]['["mine"]']["answer"]["headline"].startswith("3 random weights in 2 tensors")


@pytest.mark.parametrize(("name", "says"), [("", "it is a folder"), ("nothing/app.html", "there is no folder")])
def test_what_cannot_be_written_is_said_before_any_work(tmp_path, name, says):
    with pytest.raises(ParameterError, match=says):
        export_page(tmp_path / name)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    out = tmp_path / "app.html"
    out.write_text("before")

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ParameterError, match="No space left"):
        export_page(out, stored={"quality": {"iterations": ("10",)}})
    monkeypatch.undo()
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]
