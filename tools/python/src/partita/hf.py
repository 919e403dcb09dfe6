"""transformers' Trainer, with the steps of training done by Partita.

    trainer = partita.hf.Trainer(model=model, args=TrainingArguments(…), train_dataset=…, ranks=2)
    trainer.train()

Importing this module imports torch and transformers (5 or newer).
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .errors import PartitaError
from .program import Program, compile
from .recipe import Recipe
from .session import Session
from .torch.export import export
from .torch.optimizers import recipe_keys

__all__ = ["Trainer"]

_STATES = "partita"  # folder of the states in a checkpoint of transformers'


class Trainer(transformers.Trainer):
    """transformers' Trainer; its loop, data, evaluation, callbacks, logs and checkpoints stay, and Partita makes the steps.

    The TrainingArguments become a recipe; what has no counterpart is refused by name when the Trainer is made, or when
    training begins. A step's batch is per_device_train_batch_size x gradient_accumulation_steps samples, whatever `ranks`
    is: they divide it. All batches have one shape: pad to one length, and leave out what does not fill a batch
    (dataloader_drop_last=True). The module's weights are brought up to date for evaluation, checkpoints and the end of
    training; in between, callbacks see older ones. peft's models are trained as they are: the adapters alone.

    `ranks`, `cluster`, `plan`, `like`, `pin`, `path`: as in `partita.compile`. `recipe`: further keys of train.yaml, over
    those that the arguments become. `threads`: of each rank. `check`: compare the export with autograd first.
    """

    def __init__(
        self,
        *args: Any,
        ranks: int | None = None,
        cluster: str | Path | Mapping[str, Any] | None = None,
        plan: str | Path | None = None,
        like: str | Sequence[str] = (),
        pin: Mapping[str, Any] | None = None,
        path: str | Path | None = None,
        recipe: Mapping[str, Any] | None = None,
        threads: int | None = None,
        check: bool = True,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        if not hasattr(transformers.Trainer, "_prepare_for_training"):
            raise PartitaError(f"transformers {transformers.__version__}: expected 5 or newer; pip install -U transformers")
        self._layout: dict[str, Any] = {"ranks": ranks, "cluster": cluster, "plan": plan, "like": like, "pin": pin, "path": path}
        self._said, self._threads, self._check = dict(recipe or {}), threads, check
        self._program: Program | None = None
        self._session: Session | None = None
        self._resumed: Path | None = None
        self._collected: list[dict[str, torch.Tensor]] = []
        self._numbers: dict[str, float] = {}
        refused = _refusals(self)
        if refused:
            raise PartitaError("TrainingArguments that Partita does not train with:\n" + "\n".join(f"  {r}" for r in refused), 2)

    @property
    def program(self) -> Program:
        """What the training was compiled into; its plan(), verify() and checkpoint() say more."""
        if self._program is None:
            raise PartitaError("nothing is compiled before the first step of train()")
        return self._program

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `train`; resume_from_checkpoint takes checkpoints that a Trainer of this kind wrote."""
        try:
            return super().train(*args, **kwargs)
        finally:
            session, self._session = self._session, None
            if session is not None:  # what went wrong is told by the exception at hand
                with contextlib.suppress(PartitaError):
                    session.close()

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Collects the samples of a step, and takes it with the last of them; its loss counts there."""
        self._collected.append(_tensors(inputs))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        parts, self._collected = self._collected, []
        batch = self._joined(parts)
        if self._program is None:
            self._program = self._compiled(batch)
        if self._session is None:
            self._session = self._program.session(threads=self._threads)
        loss = self._session.step(batch)
        self._numbers = self._session.metrics
        return torch.tensor(loss, device=self.args.device)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        if self._program is not None and resume_from_checkpoint is None:
            warnings.warn("train() begins anew with the weights of the module and no optimizer states; transformers' own keeps those of before", stacklevel=2)
        self._program, self._resumed, self._collected = None, None, []
        self._check_batches(train_dataloader)
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _check_batches(self, loader: Any) -> None:
        args, group = self.args, self.args.gradient_accumulation_steps
        samples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
        if samples is None:
            return
        if not args.dataloader_drop_last and samples % args.per_device_train_batch_size != 0:
            raise PartitaError(
                f"train_dataset: {samples} samples are no multiple of per_device_train_batch_size {args.per_device_train_batch_size}, and a "
                "program has one batch size; say dataloader_drop_last=True to leave the rest of an epoch out", 2)  # fmt: skip
        if len(loader) % group != 0:
            raise PartitaError(
                f"train_dataset: {len(loader)} batches an epoch are no multiple of gradient_accumulation_steps {group}, and the last step of "
                "an epoch would be a smaller one; choose sizes that divide the data", 2)  # fmt: skip

    def _joined(self, parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        shapes = [{k: tuple(v.shape) for k, v in part.items()} for part in parts]
        wanted = shapes[0] if self._program is None else {k: (self.args.per_device_train_batch_size, *s[1:]) for k, (_, s) in self._program.inputs.items()}
        for shape in shapes:
            for name, expected in wanted.items():
                if shape.get(name) != expected:
                    raise PartitaError(
                        f"batch: {name!r} has shape {shape.get(name)}, and the first one had {expected}; a program has one shape: pad all samples "
                        "to one length (padding='max_length' in the tokenizer or collator)", 2)  # fmt: skip
        return {name: torch.cat([part[name] for part in parts]) if len(parts) > 1 else parts[0][name] for name in wanted}

    def _compiled(self, batch: dict[str, torch.Tensor]) -> Program:
        with self._loss_in_forward():
            exported = export(self.model, batch, check=self._check)  # pyright: ignore[reportArgumentType]
        program = compile(exported, Recipe(**{**self._recipe_keys(), **self._said}), **self._layout)
        if self._resumed is not None:
            shutil.copytree(self._resumed, program.folder / "checkpoints")
        return program

    @contextlib.contextmanager
    def _loss_in_forward(self) -> Iterator[None]:
        """For a while the model's forward returns the loss of a whole step, as transformers' loop has it: without accelerate's
        autocast and without recomputation, which the recipe and the plan decide on."""
        model: Any = self.model
        replaced = model.__dict__.get("forward")
        original = model.__dict__.get("_original_forward", model.forward)

        def forward(**inputs: Any) -> Any:
            count = self._get_num_items_in_batch([inputs], next(iter(inputs.values())).device)
            own = self.compute_loss_func is not None or self.label_smoother is not None
            labels = inputs.pop("labels", None) if own else None
            outputs = original(**inputs, **({"num_items_in_batch": count} if self.model_accepts_loss_kwargs and count is not None else {}))
            if self.compute_loss_func is not None:
                return self.compute_loss_func(outputs, labels, num_items_in_batch=count)
            if self.label_smoother is None or labels is None:
                return outputs
            return self.label_smoother(outputs, labels, shift_labels=_is_causal(model), num_items_in_batch=count)

        for name in ("activation_checkpointing_disable", "gradient_checkpointing_disable"):
            if (self.args.activation_checkpointing or self.args.gradient_checkpointing) and hasattr(model, name):
                getattr(model, name)()
                break
        model.forward = forward
        try:
            yield
        finally:
            del model.forward
            if replaced is not None:
                model.forward = replaced

    def _recipe_keys(self) -> dict[str, Any]:
        args: Any = self.args
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # without accelerate's wrapper
        names = {id(p): name for name, p in self.model.named_parameters()}  # pyright: ignore[reportOptionalMemberAccess]
        for group in optimizer.param_groups:
            group.setdefault("param_names", [names[id(p)] for p in group["params"]])
        scheduler: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        autocast = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        said = "schedule" in self._said
        keys = recipe_keys(optimizer, None if said else scheduler, args.max_grad_norm or None, autocast, steps=self.state.max_steps, scheduled=said)
        if args.activation_checkpointing or args.gradient_checkpointing:
            keys["recompute"] = "full"
        if args.tf32 and autocast is None:
            keys["precision"] = "tf32"
        return {**keys, "seed": args.seed}

    # What transformers' loop asks of torch's optimizer, by the session.

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        return self._numbers.get("grad_norm")

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return self._numbers.get("grad_norm")

    def _get_learning_rate(self) -> float:
        return self._numbers["lr"] if "lr" in self._numbers else super()._get_learning_rate()

    # Where the module itself is needed.

    def _bring_back(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
            self.program.load_into(self.model)  # pyright: ignore[reportArgumentType]

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self._bring_back()
        return super()._evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._bring_back()
        super()._save_checkpoint(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._bring_back()
        return super()._finalize_training(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        states = Path(output_dir) / _STATES
        shutil.rmtree(states, ignore_errors=True)
        newest = max((self.program.folder / "checkpoints").glob("step-*"))
        shutil.copytree(newest, states / newest.name)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        self._resumed = Path(checkpoint) / _STATES
        if not self._resumed.is_dir():
            raise PartitaError(
                f"{checkpoint}: expected the folder {_STATES!r} with the states of training, found none: another Trainer wrote it, or "
                "save_only_model=True; begin anew from its model", 2)  # fmt: skip


def _refusals(trainer: Trainer) -> list[str]:
    """What the arguments ask for and Partita does not do, a line each with what to say in its place."""
    args: Any = trainer.args
    found = [
        (args.world_size > 1 or args.n_gpu > 1, "more than one process or GPU: start one process, and say ranks=N here"),
        (bool(args.fsdp), "fsdp: say like='fsdp' here"),
        (bool(args.deepspeed), "deepspeed: `partita import-config ds_config.json` says what its keys become; say like='zero3' and the like here"),
        (getattr(args, "parallelism_config", None) is not None, "parallelism_config: say pin={'tensor': N, …} here"),
        (args.auto_find_batch_size, "auto_find_batch_size: the plan says what fits before training"),
        (args.neftune_noise_alpha is not None, "neftune_noise_alpha: the noise is a hook of training_step's"),
        (bool(args.use_liger_kernel), "use_liger_kernel: kernels are generated for the graph; leave it out"),
        (args.optim_target_modules is not None, "optim_target_modules: GaLore and its like have no counterpart"),
        (bool(args.debug), "debug: `--on-nonfinite` and `partita compare --nonfinite` find what is not finite"),
        (type(trainer).compute_loss is not transformers.Trainer.compute_loss, "compute_loss: give compute_loss_func=, of outputs and labels"),
    ]  # fmt: skip
    return [text for asked, text in found if asked]


def _is_causal(model: Any) -> bool:
    """Whether transformers' label smoother has each position of the model predict the next one's label."""
    named = model.base_model.model if hasattr(model, "peft_config") else model
    return type(named).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _tensors(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            raise PartitaError(f"batch: {name!r} is a {type(value).__name__}; expected a tensor (what is the same in all batches belongs into the model)", 2)
    return {name: value.detach().cpu() for name, value in inputs.items()}
