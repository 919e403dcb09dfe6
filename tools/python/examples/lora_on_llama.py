"""Adapters (LoRA, by peft) of a Llama-like model: they alone are trained, and go back into the module.

    python lora_on_llama.py [STEPS]
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import partita

SAMPLES, LENGTH = 8, 16
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
                     max_position_embeddings=LENGTH, use_cache=False)  # fmt: skip
model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
model.train()

start = torch.randint(0, 64, (512, 1))
ids = (start + 3 * torch.arange(LENGTH)) % 64  # what is to be learned: count by threes
exported = partita.export(model, {"input_ids": ids[:SAMPLES], "labels": ids[:SAMPLES]})
trained = exported.recipe.keys["trainable"]
print(f"{len(trained)} of {len(list(model.parameters()))} parameters are trained, all of them adapters: {all('lora_' in name for name in trained)}")
program = partita.compile(exported, partita.Recipe(optimizer={"kind": "adamw", "lr": 0.02}), ranks=2)
losses = [m.loss for m in program.train({"input_ids": ids, "labels": ids}, steps, shuffle=True)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
program.load_into(model)
with torch.no_grad():
    print(f"loss of the module with its adapters: {model.eval()(input_ids=ids[:64], labels=ids[:64]).loss:.3f}")
