"""Architectures in layouts: what holds, what is refused, what is a fault, and the page."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from partita.testing.zoo import hold as holding  # noqa: E402
from partita.testing.zoo.case import Case  # noqa: E402
from partita.testing.zoo.layouts import LAYOUTS, Layout, drawn  # noqa: E402
from partita.testing.zoo.pages import BesideOneRank  # noqa: E402
from partita.testing.zoo.table import Table  # noqa: E402


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def points(samples):
    return {"input": torch.randn(samples, 4), "target": torch.randn(samples, 2)}


def test_layouts_hold_or_are_refused_or_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(LAYOUTS, "deep", Layout("deep", 8, {"pipeline": 8}))
    monkeypatch.setitem(LAYOUTS, "lossy", Layout("lossy", 2, {"data": 2, "compress": "int8"}))  # another program, by what it says itself
    case = Case("a net", net, points, lambda output, batch: F.mse_loss(output, batch["target"]))
    held = holding.hold(case, ["ddp", "deep", "lossy"], 0, 1, tmp_path)
    ddp, deep, lossy = held.cells
    assert ddp.held and ddp.error < 1e-6
    assert "pipeline" in deep.refused and not deep.fault
    assert "from one rank" in lossy.fault
    page = tmp_path / "page.md"
    Table(page, ["a net", "another"], BesideOneRank(["ddp", "deep", "lossy"], 0, "command")).add("a net", held)
    again = Table(page, ["a net", "another"], BesideOneRank(["ddp", "deep", "lossy"], 0, "command"))
    assert again.summary() == "1 of 2 architectures in 3 layouts: 1 hold, 0 hold with an axis that finds nothing to divide, 1 faults, 1 refused; 1 have not been run"
    assert not again.good()
    again.add("another", held)
    assert page.read_text().count(lossy.fault) == 1


def test_drawn_layouts_have_the_ranks_that_their_axes_say():
    for number in range(200):
        layout = drawn("a net", 3, number, experts=True)
        product = 1
        for axis in ("data", "tensor", "pipeline", "context", "expert"):
            product *= layout.pins.get(axis, 1)
        assert 2 <= layout.ranks == product <= 8
        assert layout == drawn("a net", 3, number, experts=True)
