"""Training step by step in this process, and in several."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import partita

RECIPE = dict(loss={"kind": "cross_entropy"}, optimizer={"kind": "adamw", "lr": 0.01}, batch={"global": 8})


def batch_of(points, step):
    return {name: values[8 * step : 8 * step + 8] for name, values in points.items()}


@pytest.mark.parametrize("layout", [{}, {"ranks": 2}, {"ranks": 2, "pin": {"tensor": 2}}, {"ranks": 2, "pin": {"pipeline": 2}}])
def test_steps_are_those_of_a_run(mlp, points, layout):
    recipe = partita.Recipe(**RECIPE)
    run = partita.compile(mlp, recipe, **layout).train(points, 5)
    program = partita.compile(mlp, recipe, **layout)
    with program.session(threads=1) as session:
        losses = [session.step(batch_of(points, k)) for k in range(3)]
        assert session.metrics["step"] == 2 and session.metrics["lr"] == pytest.approx(0.01)
    assert program.steps_taken == 3
    with program.session(threads=1) as session:
        losses += [session.step(list(batch_of(points, k).values())) for k in range(3, 5)]
    assert losses == [m.loss for m in run]


def test_metrics_are_those_of_a_run(mlp, points):
    recipe = partita.Recipe(**RECIPE, metrics={"second": {"kind": "accuracy", "top": 2}})
    run = partita.compile(mlp, recipe).train(points, 2)
    with partita.compile(mlp, recipe).session(threads=1) as session:
        assert session.metrics == {}
        for k in range(2):
            session.step(batch_of(points, k))
            assert session.metrics["second"] == run[k].values["second"]
        assert session.metrics["samples_per_second"] > 0
    assert session.metrics["step"] == 1


def test_micro_batches_are_parts_of_the_batch(mlp, points):
    recipe = partita.Recipe(**{**RECIPE, "batch": {"global": 16, "micro": 2}})
    run = partita.compile(mlp, recipe, ranks=2).train(points, 3)
    with partita.compile(mlp, recipe, ranks=2).session() as session:
        assert [session.step({n: v[16 * k : 16 * k + 16] for n, v in points.items()}) for k in range(3)] == [m.loss for m in run]


def test_a_session_without_a_step_is_begun_again(mlp, points):
    run = partita.compile(mlp, partita.Recipe(**RECIPE)).train(points, 1)
    program = partita.compile(mlp, partita.Recipe(**RECIPE))
    for _ in range(2):
        with pytest.raises(partita.PartitaError, match="expected"), program.session() as session:
            session.step({name: values[:7] for name, values in points.items()})
    with program.session(threads=1) as session:
        assert session.step(batch_of(points, 0)) == run[0].loss


def test_batches_are_looked_at(mlp, points):
    session = partita.compile(mlp, partita.Recipe(**RECIPE)).session()
    batch = batch_of(points, 0)
    with pytest.raises(partita.PartitaError, match="nothing for the input 'target'; found 'x'"):
        session.step({"x": batch["x"]})
    with pytest.raises(partita.PartitaError, match="3 arrays for 2 inputs: x, target"):
        session.step([1, 2, 3])
    with pytest.raises(partita.PartitaError, match=r"'x' has shape \(4, 16\), expected \(8, 16\)"):
        session.step({**batch, "x": batch["x"][:4]})
    with pytest.raises(partita.PartitaError, match="'target' is float64, expected int64"):
        session.step({**batch, "target": batch["target"] * 1.0})
    with pytest.raises(partita.PartitaError, match="'target' holds 9223372036854775808, which int64 cannot hold"):
        session.step({**batch, "target": np.full(8, 1 << 63, np.uint64)})
    session.step({"x": batch["x"].astype(np.float64), "target": batch["target"].astype(np.uint16)})
    assert session.metrics["step"] == 0
    with pytest.raises(partita.PartitaError, match="'target' holds 99: expected numbers from 0 to 3"):
        session.step({**batch, "target": np.full(8, 99)})
    with pytest.raises(partita.PartitaError, match="the session is closed"):
        session.step(batch)


def test_flags_are_looked_at(mlp):
    program = partita.compile(mlp, partita.Recipe(**RECIPE))
    with pytest.raises(partita.PartitaError, match="--threads"):
        program.session(threads=-1)


RANK = """
import sys, numpy, partita
data = dict(numpy.load(sys.argv[2]))
with partita.Program(sys.argv[1]).session(threads=1) as session:
    print([session.step({n: v[8 * k : 8 * k + 8] for n, v in data.items()}) for k in range(3)])
"""


def test_each_process_is_a_rank(mlp, points, tmp_path):
    program = partita.compile(mlp, partita.Recipe(**RECIPE), ranks=2, path=tmp_path / "program")
    np.savez(tmp_path / "data.npz", **points)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, program.folder, tmp_path / "data.npz"], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, **said, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(2)
    ]  # fmt: skip
    losses = [r.communicate(timeout=60)[0].strip() for r in ranks]
    expected = [m.loss for m in partita.compile(mlp, partita.Recipe(**RECIPE), ranks=2).train(points, 3)]
    assert losses == [str(expected)] * 2
    assert program.steps_taken == 3


def test_tensors_are_read_where_they_lie(mlp, points):
    torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
    from partita.session import as_array

    tensor = torch.from_numpy(points["x"])
    assert np.shares_memory(as_array(tensor), points["x"])
    run = partita.compile(mlp, partita.Recipe(**RECIPE)).train(points, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.from_numpy, points.values())), batch_size=8)
    with partita.compile(mlp, partita.Recipe(**RECIPE)).session() as session:
        assert [session.step(batch) for _, batch in zip(range(2), loader)] == [m.loss for m in run]


def test_tensors_of_all_kinds_are_taken(mlp, points):
    torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
    x, target = torch.from_numpy(points["x"]).bfloat16(), torch.from_numpy(points["target"])
    kinds = {"bf16": x, "requires_grad": x.float().requires_grad_(), "negative": torch.complex(x.float(), -x.float()).conj().imag}
    assert kinds["negative"].is_neg()
    losses = [m.loss for m in partita.compile(mlp, partita.Recipe(**RECIPE)).train({"x": x.float().numpy(), "target": points["target"]}, 2)]
    for kind, of in kinds.items():
        assert [m.loss for m in partita.compile(mlp, partita.Recipe(**RECIPE)).train({"x": of, "target": target}, 2)] == losses, kind
        with partita.compile(mlp, partita.Recipe(**RECIPE)).session() as session:
            assert [session.step({"x": of[8 * k : 8 * k + 8], "target": target[8 * k : 8 * k + 8]}) for k in range(2)] == losses, kind


ENDING = """
import os, sys, numpy, partita
program = partita.compile(sys.argv[1], partita.Recipe(loss={"kind": "cross_entropy"}, batch={"global": 8}))
print(program.folder, flush=True)
data = dict(numpy.load(sys.argv[2]))
session = program.session(threads=1)
session.step({n: v[:8] for n, v in data.items()})
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
session.step({n: v[8:16] for n, v in data.items()})
print(program.steps_taken, program.folder.is_dir())
"""


def test_a_process_takes_its_own_folder_with_it(mlp, points, tmp_path):
    np.savez(tmp_path / "data.npz", **points)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ENDING, mlp, tmp_path / "data.npz"], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    folder, said = done.stdout.splitlines()
    assert said == "0 True" and not os.path.exists(folder)
