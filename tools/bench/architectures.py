"""Exports small models of transformers', timm's and torchvision's architectures, trains each for some steps in PyTorch (f64 and f32) and by `partita train` in
several layouts, and compares the losses. Leaves with 1 where one is off. Needs torch, onnx, onnxscript, transformers, timm and torchvision from PyPI."""
import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile

BATCH, SEQUENCE, VOCABULARY, STEPS, CLASSES = 8, 16, 128, 4, 10

LAYOUTS = {
    "one": "",
    "ddp": "--ranks 2 --like ddp",
    "zero3": "--ranks 4 --like zero3",
    "tensor": "--ranks 4 --pin tensor=2 --pin data=2 --pin sequence_parallel=true",
    "pipeline": "--ranks 4 --pin pipeline=2 --pin tensor=2 --pin micro_batch=2",
    "context": "--ranks 2 --pin context=2",
    "recompute": "--ranks 2 --pin data=2 --pin recompute=full",
}
USUAL = ("one", "zero3", "tensor", "pipeline", "context")
WHOLE_BATCH = ("clip", "densenet", "mobilenet")  # a loss or a statistic over the batch, which micro-batches cannot cut

# Configurations of transformers that train to predict the next token.
CAUSAL = {
    "gpt_neox": ("GPTNeoX", {}), "opt": ("OPT", dict(ffn_dim=64, word_embed_proj_dim=32, dropout=0.0)), "phi": ("Phi", {}), "phi3": ("Phi3", {}),
    "qwen2": ("Qwen2", dict(num_key_value_heads=2)), "qwen3": ("Qwen3", dict(num_key_value_heads=2, head_dim=8)),
    "gemma": ("Gemma", dict(num_key_value_heads=1, head_dim=8)), "gemma2": ("Gemma2", dict(num_key_value_heads=2, head_dim=8, sliding_window=8)),
    "gemma3": ("Gemma3Text", dict(num_hidden_layers=12, num_key_value_heads=2, head_dim=8, sliding_window=8)),
    "mistral": ("Mistral", dict(num_key_value_heads=2, sliding_window=8)), "bloom": ("Bloom", dict(n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0)),
    "falcon": ("Falcon", {}), "gpt_bigcode": ("GPTBigCode", dict(n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "gptj": ("GPTJ", dict(n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "gpt_neo": ("GPTNeo", dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8, attention_dropout=0, embed_dropout=0, resid_dropout=0)),
    "olmo2": ("Olmo2", {}), "granite": ("Granite", {}), "cohere": ("Cohere", {}), "glm": ("Glm", dict(num_key_value_heads=2, head_dim=8, attention_dropout=0.0)),
    "starcoder2": ("Starcoder2", dict(num_key_value_heads=2, residual_dropout=0, embedding_dropout=0, attention_dropout=0)),
    "nemotron": ("Nemotron", dict(num_key_value_heads=2)), "smollm3": ("SmolLM3", dict(num_key_value_heads=2)), "mamba": ("Mamba", dict(state_size=4)),
    "mixtral": ("Mixtral", dict(num_key_value_heads=2, num_local_experts=4, experts_implementation="batched_mm")),
    "qwen3_moe": ("Qwen3Moe", dict(num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, experts_implementation="batched_mm")),
    "olmoe": ("Olmoe", dict(num_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm")),
    "deepseek_v3": ("DeepseekV3", dict(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1, q_lora_rank=16,
                                       kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, experts_implementation="batched_mm")),
}
# To predict each token.
MASKED = {
    "roberta": ("Roberta", dict(max_position_embeddings=34, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
    "distilbert": ("DistilBert", dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, dropout=0, attention_dropout=0)),
    "albert": ("Albert", dict(embedding_size=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
    "electra": ("Electra", dict(embedding_size=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
    "deberta": ("DebertaV2", dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
    "modernbert": ("ModernBert", dict(num_hidden_layers=6, local_attention=8, global_attn_every_n_layers=3, cls_token_id=0, sep_token_id=1, reference_compile=False)),
}
# Of timm; "torchvision." those of torchvision.
IMAGES = {
    "convnext": ("convnext_atto", 32, dict(depths=(1, 1, 1, 1), dims=(16, 16, 32, 32))),
    "swin": ("swin_tiny_patch4_window7_224", 32, dict(img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.0)),
    "deit": ("deit_tiny_patch16_224", 32, dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)),
    "eva": ("eva02_tiny_patch14_224", 28, dict(img_size=28, embed_dim=48, depth=2, num_heads=4)),
    "densenet": ("densenet121", 32, dict(growth_rate=8, block_config=(2, 2))),
    "mobilenet": ("torchvision.mobilenet_v3_small", 32, dict(dropout=0.0)),
}
OTHERS = ("bart", "whisper", "clip", "lstm", "gru", "unet", "dlrm")
NAMES = (*CAUSAL, *MASKED, *IMAGES, *OTHERS)


def build(name):
    """The module, whose result is the loss, and a function that draws its inputs for all steps."""
    import torch
    import transformers
    from torch import nn
    F = torch.nn.functional
    n = BATCH * STEPS
    small = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=32, bos_token_id=0, eos_token_id=1,
                 pad_token_id=2)
    pairs = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
                 dropout=0.0, pad_token_id=2)

    def tokens(length=SEQUENCE):
        return torch.randint(3, VOCABULARY, (n, length))

    def loss_of(logits, targets):
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

    class Loss(nn.Module):
        def __init__(self, model, loss):
            super().__init__()
            self.model, self.loss = model, loss

        def forward(self, a, b):
            return self.loss(self.model, a, b)

    class LossOfOne(Loss):
        def forward(self, a):
            return self.loss(self.model, a)

    if name in CAUSAL:
        kind, own = CAUSAL[name]
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind + "Config")(**{**small, **own}))
        return LossOfOne(model, lambda m, ids: loss_of(m(input_ids=ids, use_cache=False).logits[:, :-1], ids[:, 1:])), lambda: (tokens(),)
    if name in MASKED:
        kind, own = MASKED[name]
        model = transformers.AutoModelForMaskedLM.from_config(getattr(transformers, kind + "Config")(**{**small, **own}))
        return LossOfOne(model, lambda m, ids: loss_of(m(input_ids=ids).logits, ids)), lambda: (tokens(),)
    if name in IMAGES:
        kind, size, own = IMAGES[name]
        if kind.startswith("torchvision."):
            import torchvision
            model = getattr(torchvision.models, kind.split(".")[1])(num_classes=CLASSES, **own)
        else:
            import timm
            model = timm.create_model(kind, num_classes=CLASSES, **own)
        return Loss(model, lambda m, x, y: F.cross_entropy(m(x), y)), lambda: (torch.randn(n, 3, size, size), torch.randint(0, CLASSES, (n,)))
    if name == "bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(max_position_embeddings=32, **pairs))
        return Loss(model, lambda m, a, b: loss_of(m(input_ids=a, decoder_input_ids=b, use_cache=False).logits, b)), lambda: (tokens(), tokens(20))
    if name == "whisper":
        config = transformers.WhisperConfig(num_mel_bins=16, max_source_positions=16, max_target_positions=32, bos_token_id=0, eos_token_id=1, decoder_start_token_id=0, suppress_tokens=None,
                                            begin_suppress_tokens=None, **pairs)
        return (Loss(transformers.WhisperForConditionalGeneration(config), lambda m, a, b: loss_of(m(input_features=a, decoder_input_ids=b, use_cache=False).logits, b)),
                lambda: (torch.randn(n, 16, 32), tokens()))
    if name == "clip":
        vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8)
        model = transformers.CLIPModel(transformers.CLIPConfig(text_config={**small, "num_hidden_layers": 3}, vision_config=vision, projection_dim=16))
        return Loss(model, lambda m, a, b: m(input_ids=a, pixel_values=b, return_loss=True).loss), lambda: (tokens(), torch.randn(n, 3, 32, 32))
    if name in ("lstm", "gru"):
        parts = nn.ModuleList([nn.Embedding(VOCABULARY, 32), getattr(nn, name.upper())(32, 32, num_layers=2, batch_first=True), nn.Linear(32, VOCABULARY)])
        return LossOfOne(parts, lambda m, ids: loss_of(m[2](m[1](m[0](ids))[0])[:, :-1], ids[:, 1:])), lambda: (tokens(),)
    if name == "unet":
        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())
        parts = nn.ModuleList([block(3, 16), block(16, 32), block(32, 64), nn.ConvTranspose2d(64, 32, 2, 2), block(64, 32), nn.ConvTranspose2d(32, 16, 2, 2), block(32, 16), nn.Conv2d(16, 3, 1)])

        def denoised(m, x):
            a = m[0](x)
            b = m[1](F.avg_pool2d(a, 2))
            c = m[4](torch.cat([m[3](m[2](F.max_pool2d(b, 2))), b], 1))
            return m[7](m[6](torch.cat([m[5](c), a], 1)))
        return Loss(parts, lambda m, x, y: F.mse_loss(denoised(m, x), y)), lambda: (torch.randn(n, 3, 16, 16), torch.randn(n, 3, 16, 16))
    if name == "dlrm":
        tables = nn.ModuleList([nn.Embedding(100, 16) for _ in range(6)])
        parts = nn.ModuleList([tables, nn.Sequential(nn.Linear(13, 16), nn.ReLU()), nn.Linear(37, 1)])

        def clicks(m, numbers, categories):
            z = torch.stack([m[1](numbers)] + [t(categories[:, k]) for k, t in enumerate(m[0])], 1)
            i, j = torch.tril_indices(7, 7, -1)
            return m[2](torch.cat([z[:, 0], torch.bmm(z, z.transpose(1, 2))[:, i, j]], 1)).squeeze(1)
        return Loss(parts, lambda m, a, b: clicks(m, a, b).square().mean()), lambda: (torch.randn(n, 13), torch.randint(0, 100, (n, 6)))
    raise ValueError(name)


def export(name, folder):
    import logging
    import warnings

    import numpy as np
    import torch
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module, draw = build(name)
    module.train()
    for m in module.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    inputs = draw()
    program = torch.onnx.export(copy.deepcopy(module), tuple(x[:BATCH] for x in inputs), dynamo=True, optimize=False, opset_version=20, verbose=False,
                                dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs))
    program.save(f"{folder}/model.onnx")
    graph = program.model.graph
    np.savez(f"{folder}/data.npz", **{value.name: x.numpy() for value, x in zip(graph.inputs, inputs)})
    rate = 0.001 if name in ("densenet", "mobilenet") else 0.05  # norms of small batches are steep
    untrained = [f"model.{k}" for k, p in module.model.named_parameters() if not p.requires_grad]
    with open(f"{folder}/train.yaml", "w") as recipe:
        recipe.write(f"loss: {{kind: output, output: {graph.outputs[0].name}}}\noptimizer: {{kind: sgd, lr: {rate}}}\nbatch: {{global: {BATCH}}}\n"
                     f"semantics: {{batch_norm_training: true}}\nfrozen: {json.dumps(untrained)}\n")
    losses = []
    for dtype in (torch.float64, torch.float32):
        m = copy.deepcopy(module).to(dtype)
        optimizer = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=rate)
        losses.append([])
        for k in range(STEPS):
            batch = [x[k * BATCH:(k + 1) * BATCH] for x in inputs]
            optimizer.zero_grad()
            loss = m(*[x.to(dtype) if x.is_floating_point() else x for x in batch])
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    with open(f"{folder}/losses.json", "w") as file:
        json.dump(losses, file)


def error(losses, exact):
    return max(abs(a / b - 1) for a, b in zip(losses, exact))


def train(args, name, layout, folder):
    """What is printed, and whether it is as it should be."""
    exact, f32 = json.load(open(f"{folder}/losses.json"))
    metrics = f"{folder}/metrics.jsonl"
    done = subprocess.run([args.partita, "train", f"{folder}/model.onnx", "--train", f"{folder}/train.yaml", "--data", f"{folder}/data.npz", "--steps", str(STEPS), "--metrics", metrics, "--quiet",
                           *LAYOUTS[layout].split()], capture_output=True, text=True)
    if done.returncode:
        return f"left with {done.returncode}: {done.stderr.strip()[-300:]}", False
    found, own = error([json.loads(line)["loss"] for line in open(metrics)], exact), error(f32, exact)
    return f"{found:.1e} (PyTorch in f32 {own:.1e})", found <= max(3e-6, 5 * own)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partita", default="build/release/tools/partita")
    parser.add_argument("--only", default=",".join(NAMES), help="architectures (default: all)")
    parser.add_argument("--layouts", default=",".join(USUAL), help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--export", nargs=2, metavar=("NAME", "FOLDER"), help="export one, in this process")
    args = parser.parse_args()
    if args.export:
        return export(*args.export)
    off = held = 0
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, __file__, "--export", name, folder], capture_output=True, text=True)
            if done.returncode:
                off += 1
                print(f"{name:12} PyTorch does not export it: {done.stderr.strip().splitlines()[-1][:200]}", flush=True)
                continue
            for layout in args.layouts.split(","):
                if layout == "pipeline" and name in WHOLE_BATCH:
                    continue
                text, good = train(args, name, layout, folder)
                held, off = held + good, off + (not good)
                print(f"{name:12} {layout:10} {'' if good else 'OFF: '}{text}", flush=True)
    print(f"{held} runs hold, {off} do not")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
