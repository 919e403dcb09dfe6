"""Metrics in trackers, written and read by their own libraries without a connection."""

import pytest

import partita
import partita.callbacks


def metrics(step, **more):
    values = {"step": step, "loss": 2.0 / (step + 1), "lr": 0.5, "grad_norm": None, "seconds": 0.1, "overflow": False, "ranks": {"slowest": 3}, **more}
    return partita.Metrics(step, values["loss"], 0.5, float("nan"), 0.1, None, values.get("evaluation_loss"), values)


def feed(callback):
    for m in [metrics(0), metrics(1), metrics(2), metrics(3, evaluation_loss=1.5), metrics(4)]:
        callback(m)


def test_every_so_many_steps_and_evaluations():
    class Kept(partita.callbacks._Tracker):
        def _write(self, numbers, step):
            kept.append((step, numbers))

    kept = []
    feed(Kept(every=4))
    assert [step for step, _ in kept] == [0, 3, 4]
    assert kept[1][1] == {"loss": 0.5, "lr": 0.5, "seconds": 0.1, "ranks/slowest": 3.0, "evaluation_loss": 1.5}
    with pytest.raises(partita.PartitaError, match="every: expected at least 1, found 0"):
        Kept(every=0)


def test_a_run_writes_to_them(mlp, points):
    class Kept(partita.callbacks._Tracker):
        def _write(self, numbers, step):
            kept.append((step, numbers["loss"]))

    kept = []
    keys = dict(loss={"kind": "cross_entropy"}, optimizer={"kind": "sgd", "lr": 0.1}, batch={"global": 8})
    history = partita.compile(mlp, partita.Recipe(**keys)).train(points, steps=3, callbacks=[Kept(1)])
    assert kept == [(m.step, m.loss) for m in history]


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(partita.PartitaError, match="pip install wandb"):
        partita.callbacks.WandB()


def test_tensorboard(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (tools/python/test --torch)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = partita.callbacks.TensorBoard(tmp_path)
    feed(callback)
    callback.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")][:2] == [(0, 2.0), (1, 1.0)]
    assert "ranks/slowest" in events.Tags()["scalars"]


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed (tools/python/test --torch)")
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = partita.callbacks.WandB(mode="offline", project="p", dir=str(tmp_path))
    run = callback._run
    feed(callback)
    assert run.summary["evaluation_loss"] == 1.5  # the newest step is written when the run is finished
    callback.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    with pytest.raises(partita.PartitaError, match="project would be of a new one"):
        partita.callbacks.WandB(run, project="p")
    assert wandb.run is None  # finished


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (tools/python/test --torch)")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the other store needs a database server's packages
    store = (tmp_path / "runs").as_uri()
    callback = partita.callbacks.MLflow("trial", tracking_uri=store, run_name="first")
    run = callback._run
    feed(callback)
    callback.close()
    client = mlflow.MlflowClient(store)
    assert [(m.step, m.value) for m in client.get_metric_history(run, "loss")][:2] == [(0, 2.0), (1, 1.0)]
    assert client.get_run(run).info.status == "FINISHED"
