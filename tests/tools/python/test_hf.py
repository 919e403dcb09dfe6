"""transformers' Trainer with Partita's steps."""

import copy

import pytest

import partita

torch = pytest.importorskip("torch", reason="torch is not installed (tools/python/test --torch)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (tools/python/test --torch)")
if not hasattr(transformers.Trainer, "_prepare_for_training"):
    pytest.skip("transformers 5 is not installed", allow_module_level=True)
import partita.hf  # noqa: E402

LENGTH = 8


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, resid_pdrop=0,
                                embd_pdrop=0, attn_pdrop=0))  # fmt: skip


@pytest.fixture(scope="module")
def data():
    draw = torch.Generator().manual_seed(1)
    ids = (torch.randint(0, 32, (48, 1), generator=draw) + torch.arange(LENGTH)) % 32
    labels = ids.clone()
    labels[::3, :3] = -100  # not all samples have as many
    return [{"input_ids": i, "labels": k} for i, k in zip(ids, labels)]


def arguments(folder, **more):
    keys = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1, learning_rate=0.01, weight_decay=0.1, logging_steps=1,
                save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)  # fmt: skip
    return transformers.TrainingArguments(output_dir=str(folder), **{**keys, **more})


def logged(trainer, key):
    return [line[key] for line in trainer.state.log_history if key in line]


def difference(a, b):
    return max(float((x - y).detach().abs().max()) for x, y in zip(a.parameters(), b.parameters()))


def test_it_is_transformers_trainer(data, tmp_path):
    ours, reference = gpt2(), gpt2()
    more = dict(eval_strategy="steps", eval_steps=3, lr_scheduler_type="cosine", warmup_steps=2, max_grad_norm=0.5)
    other = transformers.Trainer(model=reference, args=arguments(tmp_path / "a", **more), train_dataset=data, eval_dataset=data[:8])
    other.train()
    trainer = partita.hf.Trainer(model=ours, args=arguments(tmp_path / "b", **more), train_dataset=data, eval_dataset=data[:8], ranks=2)
    assert trainer.train().global_step == 6
    assert trainer.program.ranks == 2 and trainer.program.samples_per_step == 8
    for key in ("loss", "eval_loss", "grad_norm", "learning_rate"):
        assert logged(trainer, key) == pytest.approx(logged(other, key), rel=1e-4, abs=1e-9), key
    assert difference(ours, reference) < 1e-4
    trainer.save_model(str(tmp_path / "saved"))
    assert difference(transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved"), ours) == 0
    with pytest.warns(UserWarning, match="train.. begins anew with the weights of the module and no optimizer states"):
        trainer._prepare_for_training(6, trainer.get_train_dataloader(), None)


def test_adapters_go_on_from_a_checkpoint(data, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed (tools/python/test --torch)")
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
                                      max_position_embeddings=LENGTH)  # fmt: skip

    def lora():
        torch.manual_seed(0)
        return peft.get_peft_model(transformers.LlamaForCausalLM(config), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

    whole, broken = lora(), lora()
    base = copy.deepcopy(dict(whole.named_parameters()))
    saving = dict(save_strategy="steps", save_steps=3)
    partita.hf.Trainer(model=whole, args=arguments(tmp_path / "run", **saving), train_dataset=data).train()
    changed = [name for name, p in whole.named_parameters() if not torch.equal(p, base[name])]
    assert changed and all("lora_" in name for name in changed)
    assert (tmp_path / "run" / "checkpoint-3" / "adapter_model.safetensors").is_file()
    trainer = partita.hf.Trainer(model=broken, args=arguments(tmp_path / "run", **saving), train_dataset=data)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert difference(whole, broken) == 0
    with pytest.raises(partita.PartitaError, match="another Trainer wrote it"):
        trainer._load_optimizer_and_scheduler(str(tmp_path))


def test_weights_of_a_sharded_folder_and_back(data, tmp_path):
    given, other = gpt2().to(torch.bfloat16), gpt2()
    given.save_pretrained(tmp_path / "hub", max_shard_size="4KB")
    assert len(list((tmp_path / "hub").glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        for p in other.parameters():
            p.fill_(0.5)
    ids = torch.stack([d["input_ids"] for d in data])
    exported = partita.export(other.train(), {"input_ids": ids[:8], "labels": ids[:8]}, check=False)
    recipe = partita.Recipe(optimizer={"kind": "sgd", "lr": 1e-6})  # less than half a unit of bf16's last place
    program = partita.compile(exported, recipe, ranks=2, pin={"tensor": 2})
    program.train({"input_ids": ids, "labels": ids}, 1, init=tmp_path / "hub")
    program.checkpoint().save_pretrained(tmp_path / "back", like=tmp_path / "hub")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back")
    assert again.dtype == torch.bfloat16
    assert difference(again, given) < 1e-4
    with pytest.raises(partita.PartitaError, match="init: this program has taken 1 steps"):
        program.session(init=tmp_path / "hub")


def assert_same_losses(data, args, **more):
    losses = []
    for kind in (transformers.Trainer, partita.hf.Trainer):
        trainer = kind(model=gpt2(), args=args, train_dataset=data, **more)
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert len(losses[0]) == args.max_steps and losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_loss_of_ones_own(data, tmp_path):
    def loss(outputs, labels, num_items_in_batch):
        return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch

    assert_same_losses(data, arguments(tmp_path, max_steps=2), compute_loss_func=loss)


def test_label_smoothing(data, tmp_path):
    assert_same_losses(data, arguments(tmp_path, max_steps=4, label_smoothing_factor=0.1, lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2}))


def test_what_it_does_not_do_is_refused_by_name(data, tmp_path):
    with pytest.raises(partita.PartitaError, match="(?s)auto_find_batch_size: .*\n.*neftune_noise_alpha: "):
        partita.hf.Trainer(model=gpt2(), args=arguments(tmp_path, auto_find_batch_size=True, neftune_noise_alpha=5), train_dataset=data)

    def refused(match, dataset=data, evaluated=None, **more):
        with pytest.raises(partita.PartitaError, match=match):
            partita.hf.Trainer(model=gpt2(), args=arguments(tmp_path, **more), train_dataset=dataset, eval_dataset=evaluated).train()

    refused("47 samples are no multiple of per_device_train_batch_size 4", data[:47])
    refused("11 batches an epoch are no multiple of gradient_accumulation_steps 2", data[:44])
    refused("scheduler: ReduceLROnPlateau has no counterpart", evaluated=data[:8], lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps")
    refused(r"optimizer: transformers.optimization.Adafactor has no counterpart; .*torch\.optim\.Adafactor", optim="adafactor")
    short = [{k: v[:5] for k, v in sample.items()} for sample in data[:8]]
    refused("'input_ids' has shape .*, and the first one had .*pad all samples", data[:8] + short, train_sampling_strategy="sequential")
