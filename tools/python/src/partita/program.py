"""From a model and a recipe to a program for all ranks; planning, proving and running it."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .checkpoint import Checkpoint
from .errors import PartitaError
from .folders import TemporaryFolder
from .plan import Plan, plan_of
from .programs import partita_program, run_partita
from .recipe import Recipe
from .run import Callback, Metrics, Run
from .session import Session, as_array

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .torch.export import Exported

__all__ = ["Program", "compile", "from_checkpoint"]

_ADDED = ("trainable", "frozen")  # keys that an export and a recipe may both say


def compile(
    model: str | Path | Exported,
    recipe: Recipe | None = None,
    *,
    ranks: int | None = None,
    cluster: str | Path | Mapping[str, Any] | None = None,
    plan: str | Path | None = None,
    like: str | Sequence[str] = (),
    pin: Mapping[str, Any] | None = None,
    also: Sequence[int | str | Path] = (),
    path: str | Path | None = None,
    keep_gradients: bool = False,
) -> Program:
    """Compiles a model into a program for all ranks.

    `model`: what `export` returned, or an ONNX file or folder. `recipe`: how to train it; keys that the export found in
    the module (its loss, frozen parameters, batch) need not be said again. Parameters that the optimizer of
    `Recipe.from_torch` does not hold are frozen, as torch leaves them.
    The layout is one of: `cluster` (a cluster.yaml or its keys), for which the fastest is searched; `plan`, a plan.json
    that `partita plan` wrote; or `ranks`, with `like` ("zero3", "megatron:tp2") and `pin` ({"tensor": 2}) saying more. None: one rank.
    `also`: other numbers of ranks (or plan.json files of some) that the program can go on with: `train(ranks=…)`, or as many
    as torchrun or mpirun start. All train alike.
    `path`: the folder of the program, which must not exist; a temporary one by default, gone with the Program and with what came of it.
    `keep_gradients`: keeps them to the end of a step, for `Run`s that save them.
    """
    folder, owner = _new_folder(path)
    said = recipe if recipe is not None else Recipe()
    if isinstance(model, (str, Path)):
        source = Path(model)
    else:
        source, asked = model.path, said.called_as(model.trained)
        said = _joined(model.recipe, asked)
        if left := asked.left_out(model.trained):
            frozen = said.keys.get("frozen", [])
            said = said.replaced(frozen=[*([frozen] if isinstance(frozen, str) else frozen), *map(escape, left)])
        model.check_batch(said)
        (folder / "module.json").write_text(json.dumps(model.facts), encoding="utf-8")
    if recipe is not None and recipe.steps_taken is not None:
        (folder / "scheduler.json").write_text(json.dumps({"steps_taken": recipe.steps_taken}), encoding="utf-8")
    (folder / "train.yaml").write_text(said.text(), encoding="utf-8")
    layout: list[str | Path] = [f"--pin={key}={_yaml(value)}" for key, value in (pin or {}).items()]
    others = ["--also", ",".join(str(a) for a in also)] if also else []
    layout += [f"--like={preset}" for preset in ([like] if isinstance(like, str) else like)]
    if cluster is not None:
        if plan is not None or ranks is not None:
            raise PartitaError("cluster has the layout searched; leave out plan and ranks, or cluster")
        cluster_file = _cluster_file(cluster, folder)
        run_partita("plan", source, "--train", folder / "train.yaml", "--cluster", cluster_file, "-o", folder / "plan.json", "--quiet", *layout)
        layout = ["--plan", folder / "plan.json"]
    elif plan is not None:
        (folder / "plan.json").write_bytes(Path(plan).read_bytes())
        layout += ["--plan", folder / "plan.json"]
    if ranks is not None:
        layout += ["--ranks", str(ranks)]
    run_partita("compile", source, "--train", folder / "train.yaml", "-o", folder / "bundle", *layout, *others,
                *(["--keep-gradients"] if keep_gradients else []))
    return Program(folder, owner)


def from_checkpoint(path: str | Path) -> Checkpoint:
    """A checkpoint that any run wrote, or the newest of a folder of them."""
    return Checkpoint(Path(path))


class Program:
    """A compiled program: a bundle, and the checkpoints of its training. Each training goes on where the last one ended."""

    def __init__(self, folder: str | Path, owner: TemporaryFolder | None = None):
        """The program in a folder that `compile(path=…)` made."""
        self.folder, self._owner = Path(folder).absolute(), owner
        self._last_run: Callable[[], Run | None] = lambda: None
        if not (self.bundle / "manifest.json").is_file():
            raise PartitaError(f"{self.folder}: no program of partita.compile's lies there")
        self._manifest: dict[str, Any] = json.loads((self.bundle / "manifest.json").read_text(encoding="utf-8"))

    @property
    def bundle(self) -> Path:
        """The folder with the executable of the ranks: `mpirun -n N bundle/rank --data FILE` runs it without Python."""
        return self.folder / "bundle"

    @property
    def ranks(self) -> int:
        return int(self._manifest["ranks"])

    @property
    def samples_per_step(self) -> int:
        """The global batch: samples of one optimizer step, over all ranks."""
        return int(self._manifest["samples_per_step"])

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What a step reads, by name: dtype ("f32", "i64", …) and shape, the first dimension being samples."""
        return {i["name"]: (i["dtype"], tuple(i["shape"])) for i in self._manifest["inputs"]}

    @property
    def warnings(self) -> list[str]:
        """What the compiler warned of."""
        return list(self._manifest["warnings"])

    def plan(self) -> Plan:
        """How it is divided, what that should cost, and why not otherwise; a notebook shows it as a page."""
        return plan_of(self._manifest, self.folder / "plan.json", self._owner)

    def verify(self, numeric: bool = False) -> dict[str, Any]:
        """Proves that the ranks together compute the serial program, and returns the certificate.

        `numeric`: also runs two steps and compares them. PartitaError with code 4 where it does not hold.
        """
        run_partita("verify", self.bundle, "--quiet", *(["--numeric"] if numeric else []))
        return json.loads((self.bundle / "certificate.json").read_text(encoding="utf-8"))

    def train(self, data: Mapping[str, Any] | str | Path | None = None, steps: int | None = None, **options: Any) -> list[Metrics]:
        """Trains to the end and returns the metrics of each step. Arguments: see `start`."""
        return self.start(data, steps, **options).wait()

    def start(
        self,
        data: Mapping[str, Any] | str | Path | None = None,
        steps: int | None = None,
        *,
        shuffle: bool = False,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        threads: int | None = None,
        checkpoint_every: int | None = None,
        save_gradients: str | Path | None = None,
        init: str | Path | None = None,
        ranks: int | None = None,
    ) -> Run:
        """Starts training in a process of its own; iterate over the Run for metrics as they come.

        `data`: an array for each of `inputs` (NumPy, torch, or anything that np.asarray takes; the first dimension counts
        samples, any number of them), or a file as `partita train --data` takes it; None: the recipe's.
        `steps`: optimizer steps of this training; None: the data once. Other data than the last training's begin with their first
        sample; the same go on where it ended, and begin again once they are used up.
        `shuffle`: a new order each epoch, by the recipe's seed. `callbacks`: called with the Metrics of each step, and their
        `close()` at the end. `progress`: a bar (tqdm); None: in a terminal or notebook. `threads`: of each rank.
        `checkpoint_every`: steps; the last step is always kept. `save_gradients`: a safetensors file for those of the first step
        of all (`compile(keep_gradients=True)`). `init`: weights to begin with, before the first step: a folder that transformers'
        save_pretrained() wrote, a safetensors file of a module, or a checkpoint; each rank reads what it holds. `ranks`: as many,
        of those that `compile(also=…)` made plans for.
        """
        run = self._last_run()
        if run is not None and run.is_on:
            raise PartitaError("a run of this program is on; wait() for it, or stop() it and wait()")
        first = self.steps_taken
        total = None if steps is None else first + steps
        command: list[str | Path] = [partita_program(), "run", self.bundle, *self._flags(threads, checkpoint_every, init)]
        command += ["--data", self._data_file(data)] if data is not None else []
        command += ["--shuffle"] if shuffle else []
        command += ["--steps", str(total)] if total is not None else []
        command += ["--save-gradients", Path(save_gradients)] if save_gradients is not None else []
        command += ["--ranks", str(ranks)] if ranks is not None else []
        metrics = self.folder / f"metrics-{first}.jsonl"
        metrics.unlink(missing_ok=True)
        run = Run([*command, "--metrics", metrics], metrics, steps, callbacks, progress, self._owner)
        self._last_run = weakref.ref(run)
        return run

    def session(self, *, threads: int | None = None, checkpoint_every: int | None = None, init: str | Path | None = None) -> Session:
        """Training step by step in this process, with batches of one's own; all ranks as threads, or under torchrun or
        mpirun the rank that this process is. Several processes need a program in a folder that all of them see. `init`: as in `start`."""
        flags = [str(f) for f in self._flags(threads, checkpoint_every, init)]
        return Session(self.bundle, self.inputs, self.samples_per_step, flags, self._owner)

    @property
    def steps_taken(self) -> int:
        """Optimizer steps up to the newest checkpoint."""
        steps = [int(m[1]) for p in self._checkpoints.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
        return max(steps, default=0)

    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint."""
        if not self.steps_taken:
            raise PartitaError("this program has not been trained: it has no checkpoint")
        return Checkpoint(self._checkpoints, self._owner)

    def parameters(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """Trained parameters (`ema`: their moving averages) and running statistics, by name, whole whatever the layout."""
        return self.checkpoint().parameters(ema=ema)

    def load_into(self, module: nn.Module, *, ema: bool = False) -> None:
        """Writes what was trained (`ema`: the averages) into the module: parameters, tied ones too, and buffers of batch norms. Strict.

        As `Checkpoint.load_into`, of the newest one.
        """
        self.checkpoint().load_into(module, ema=ema)

    def optimizer_state_into(self, optimizer: Optimizer | Sequence[Optimizer], module: nn.Module) -> None:
        """Writes moments and step counts into torch's optimizer, over the module's parameters."""
        self.checkpoint().optimizer_state_into(optimizer, module)

    def optimizer_state_from(self, optimizer: Optimizer | Sequence[Optimizer], module: nn.Module) -> None:
        """Begins training with the moments and step count of torch's optimizer; before the first step.

        SGD and Muon count no steps: with them the count is that of the scheduler that `Recipe.from_torch` read.
        """
        from .torch.states import save_optimizer_states

        if self.steps_taken:
            raise PartitaError("this program has been trained already; optimizer states are taken up before the first step")
        save_optimizer_states(optimizer, module, self.folder / "optimizer.safetensors", self._scheduler_steps)

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _flags(self, threads: int | None, checkpoint_every: int | None, init: str | Path | None) -> list[str | Path]:
        """Of a run that goes on where the last one ended."""
        if init is not None and self.steps_taken:
            raise PartitaError(f"init: this program has taken {self.steps_taken} steps already; weights are taken up before the first one")
        if not self.steps_taken:  # a run that ended before its first step left what it began with
            shutil.rmtree(self._checkpoints, ignore_errors=True)
        flags: list[str | Path] = ["--quiet", "--checkpoint", self._checkpoints, *(["--init", init] if init is not None else [])]
        flags += ["--resume", "--new-pass"] if self.steps_taken else self._initial_optimizer()
        flags += ["--every", str(checkpoint_every)] if checkpoint_every is not None else []
        return flags + (["--threads", str(threads)] if threads is not None else [])

    def _initial_optimizer(self) -> list[str | Path]:
        states = self.folder / "optimizer.safetensors"
        if states.is_file():
            return ["--init-optimizer", states]
        if self._scheduler_steps:
            raise PartitaError(f"scheduler: it had taken {self._scheduler_steps} steps when the recipe was made, and this program has taken none: go on with "
                               "optimizer_state_from(optimizer, module), or make the recipe before the first step")  # fmt: skip
        return []

    @property
    def _scheduler_steps(self) -> int | None:
        """Of the scheduler that the recipe was made of; None where there was none."""
        about = self.folder / "scheduler.json"
        return int(json.loads(about.read_text(encoding="utf-8"))["steps_taken"]) if about.is_file() else None

    def _data_file(self, data: Mapping[str, Any] | str | Path) -> str | Path:
        if isinstance(data, (str, Path)):
            return data
        unknown = [name for name in self.inputs if name not in data]
        if unknown:
            raise PartitaError(f"data: nothing for the input {unknown[0]!r}; found {', '.join(map(repr, data)) or 'nothing'}")
        path = self.folder / "data.npz"
        arrays: dict[str, Any] = {name: as_array(data[name]) for name in self.inputs}
        new = self.folder / "data.new.npz"  # a run of another process may still read the one that is there
        np.savez(new, **arrays)
        new.replace(path)
        return path

    def __repr__(self) -> str:
        return f"Program({str(self.folder)!r}, {self.ranks} ranks, {self.samples_per_step} samples a step, {self.steps_taken} steps taken)"


def _new_folder(path: str | Path | None) -> tuple[Path, TemporaryFolder | None]:
    if path is None:
        owner = TemporaryFolder()
        return owner.path, owner
    try:
        Path(path).mkdir(parents=True)
    except FileExistsError:
        raise PartitaError(f"{path} is there already; name a new folder, or open it with partita.Program") from None
    return Path(path), None


def _joined(found: Recipe, said: Recipe) -> Recipe:
    """What the export found in the module, and over it what the user says."""
    keys = found.keys
    for key, value in said.keys.items():
        if key in _ADDED and key in keys:
            keys[key] = keys[key] + ([value] if isinstance(value, str) else value)
        elif isinstance(value, dict) and isinstance(keys.get(key), dict):
            keys[key] = {**keys[key], **value}
        else:
            keys[key] = value
    return Recipe(**keys)


def _cluster_file(cluster: str | Path | Mapping[str, Any], folder: Path) -> Path:
    if isinstance(cluster, (str, Path)):
        return Path(cluster)
    path = folder / "cluster.yaml"
    path.write_text(json.dumps(dict(cluster)), encoding="utf-8")
    return path


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
