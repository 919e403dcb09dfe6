"""Recipes, programs and runs: what needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import partita

KEYS = dict(loss={"kind": "cross_entropy"}, optimizer={"kind": "adamw", "lr": 0.01}, batch={"global": 8})


@pytest.fixture
def program(mlp):
    return partita.compile(mlp, partita.Recipe(**KEYS), ranks=2)


def test_version_is_the_compilers():
    said = subprocess.run([Path(sys.executable).with_name("partita"), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == partita.__version__


def test_import_leaves_torch_alone():
    subprocess.run([sys.executable, "-c", "import partita, sys; assert 'torch' not in sys.modules"], check=True)


def test_recipe_says_defaults_out():
    recipe = partita.Recipe(**KEYS)
    assert "betas: [0.9, 0.999]" in recipe.resolved
    assert recipe.keys == KEYS
    assert recipe == partita.Recipe(**{**KEYS, "precision": "fp32"})
    assert recipe != recipe.replaced(precision="bf16")


def test_recipe_of_a_file(tmp_path):
    (tmp_path / "train.yaml").write_text("loss: {kind: cross_entropy}\noptimizer: {kind: adamw, lr: 0.01}\nbatch: {global: 8}\n")
    assert partita.Recipe.read(tmp_path / "train.yaml") == partita.Recipe(**KEYS)


def test_recipe_refuses_by_name():
    with pytest.raises(partita.PartitaError, match="recipe:.*unknown key 'optimiser'; the nearest known key is 'optimizer'") as refused:
        partita.Recipe(optimiser={"kind": "sgd"})
    assert refused.value.code == 2
    with pytest.raises(partita.PartitaError, match="optimizer.lr"):
        partita.Recipe(optimizer={"kind": "sgd", "lr": -1})


def test_layers_have_rates_of_their_own():
    groups = partita.layer_decay(["embed*", ["a.*", "b.*"], "head*"], lr=0.5, factor=0.5)
    assert groups == [{"match": "embed*", "lr": 0.125}, {"match": ["a.*", "b.*"], "lr": 0.25}, {"match": "head*", "lr": 0.5}]
    resolved = partita.Recipe(**{**KEYS, "optimizer": {"kind": "sgd", "lr": 0.5, "groups": groups}}).resolved
    assert "{match: ['a.*', 'b.*'], lr: 0.25, " in resolved


def test_recipe_takes_numpys_numbers():
    assert partita.Recipe(optimizer={"kind": "sgd", "lr": np.float64(0.5)}).keys["optimizer"]["lr"] == 0.5


def test_program_says_what_it_is(program):
    assert (program.ranks, program.samples_per_step, program.steps_taken) == (2, 8, 0)
    assert program.inputs == {"x": ("f32", (8, 16)), "target": ("i64", (8,))}
    plan = program.plan()
    assert (plan.layout, plan.ranks, plan.step_seconds) == ("data 2", 2, None)
    assert "data 2" in plan._repr_html_()
    with pytest.raises(partita.PartitaError, match="has not been trained"):
        program.parameters()


def test_training_in_two_parts_is_training_in_one(mlp, points, program):
    first = program.train(points, 3)
    assert [m.step for m in first] == [0, 1, 2]
    seen = []
    run = program.start(points, 3, callbacks=[seen.append])
    assert [m.step for m in run] == [3, 4, 5]
    assert [m.loss for m in seen] == [m.loss for m in run.history]
    whole = partita.compile(mlp, partita.Recipe(**KEYS), ranks=2)
    assert [m.loss for m in whole.train(points, 6)] == [m.loss for m in [*first, *seen]]
    assert program.checkpoint().step == 6
    for name, value in program.parameters().items():
        np.testing.assert_array_equal(value, whole.parameters()[name])
    states = program.checkpoint().optimizer_states()
    assert states["step"] == 6 and states["fc1.weight.exp_avg"].shape == (32, 16)
    again = partita.from_checkpoint(program.folder / "checkpoints")
    assert sorted(again.parameters()) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def test_other_data_begin_with_their_first_sample_and_the_same_again_when_used_up(mlp, points):
    def part(first, last):
        return {name: values[first:last] for name, values in points.items()}

    def losses(program, *arguments):
        return [m.loss for m in program.train(*arguments)]

    still = partita.Recipe(loss=KEYS["loss"], optimizer={"kind": "sgd", "lr": 0.0})  # losses are those of the samples
    alone = [losses(partita.compile(mlp, still), part(*ends)) for ends in ((0, 16), (16, 40))]
    program = partita.compile(mlp, still)
    assert losses(program, part(0, 16)) == alone[0]
    assert losses(program, part(0, 16)) == alone[0]
    assert losses(program, part(16, 40), 2) == alone[1][:2]
    assert losses(program, part(16, 40)) == alone[1][2:]
    assert losses(program, part(0, 16)) == alone[0]
    assert program.steps_taken == 9


def test_training_goes_on_with_other_ranks(mlp, points):
    program = partita.compile(mlp, partita.Recipe(**KEYS), ranks=2, also=[1])
    halves = program.train(points, 2) + program.train(points, 2, ranks=1)
    whole = partita.compile(mlp, partita.Recipe(**KEYS)).train(points, 4)
    assert [m.loss for m in halves] == pytest.approx([m.loss for m in whole], rel=1e-5)
    with pytest.raises(partita.PartitaError, match="3"):
        program.train(points, 1, ranks=3)


class _Ending:
    closed = False

    def __init__(self, after):
        self.after = after

    def __call__(self, metrics):
        if metrics.step == self.after:
            raise KeyboardInterrupt

    def close(self):
        self.closed = True


def test_a_callback_is_closed(points, program):
    ending = _Ending(after=9)
    program.train(points, 2, callbacks=[ending])
    assert ending.closed


def test_a_callback_may_end_the_run(points, program):
    with pytest.raises(KeyboardInterrupt):
        program.train(points, 4, callbacks=[_Ending(after=1)])


def test_data_are_looked_at(points, program):
    with pytest.raises(partita.PartitaError, match="nothing for the input 'target'"):
        program.train({"x": points["x"]})
    with pytest.raises(partita.PartitaError, match="x"):
        program.train({**points, "x": points["x"][:, :3]}, 1)


def test_verify_proves(program):
    certificate = program.verify()
    assert certificate["verdict"] == "equal to the serial program" and certificate["ranks"] == 2
    with open(program.bundle / "program.partita", "r+b") as image:
        image.seek(200)
        image.write(b"\xff")
    with pytest.raises(partita.PartitaError, match="program.partita"):
        program.verify()


def test_layout_is_searched_for_a_cluster(mlp):
    program = partita.compile(mlp, partita.Recipe(**KEYS), cluster={"preset": "azure-nd96isr-h100-v5", "nodes": 1})
    plan = program.plan()
    assert plan.ranks == 8 and plan.step_seconds > 0 and plan.why_not[0].reason
    assert plan._repr_html_().startswith("<iframe")
    with pytest.raises(partita.PartitaError, match="leave out plan and ranks"):
        partita.compile(mlp, partita.Recipe(**KEYS), ranks=2, cluster={"preset": "azure-nd96isr-h100-v5"})


def test_layout_by_pins_and_presets(mlp):
    program = partita.compile(mlp, partita.Recipe(**KEYS), ranks=4, like="zero3", pin={"tensor": 2})
    assert program.plan().layout == "data 2 x tensor 2"


def test_a_temporary_folder_stays_for_what_came_of_the_program(mlp, points):
    program = partita.compile(mlp, partita.Recipe(**KEYS))
    folder, run = program.folder, program.start(points, 2)
    del program
    assert len(run.wait()) == 2 and not folder.exists()
    program = partita.compile(mlp, partita.Recipe(**KEYS))
    folder, session = program.folder, program.session(threads=1)
    del program
    session.step({name: values[:8] for name, values in points.items()})
    assert folder.exists()
    session.close()
    assert not folder.exists()
    program = partita.compile(mlp, partita.Recipe(**KEYS))
    program.train(points, 1)
    checkpoint = program.checkpoint()
    del program
    assert checkpoint.parameters()
    program = partita.compile(mlp, partita.Recipe(**KEYS), cluster={"preset": "azure-nd96isr-h100-v5", "nodes": 1})
    folder, plan = program.folder, program.plan()
    del program
    assert plan.html()
    del plan
    assert not folder.exists()


def test_a_folder_is_kept(mlp, points, tmp_path):
    partita.compile(mlp, partita.Recipe(**KEYS), path=tmp_path / "program").train(points, 2)
    kept = partita.Program(tmp_path / "program")
    assert kept.steps_taken == 2
    with pytest.raises(partita.PartitaError, match="is there already"):
        partita.compile(mlp, partita.Recipe(**KEYS), path=tmp_path / "program")
    lines = (kept.folder / "metrics-0.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["step"] == 1
