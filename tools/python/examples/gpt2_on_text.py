"""A small GPT-2 of transformers on a text, a byte a token.

    python gpt2_on_text.py FILE [STEPS]
"""

import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import partita

SAMPLES, LENGTH = 16, 64
text = np.frombuffer(open(sys.argv[1], "rb").read(), dtype=np.uint8).astype(np.int64)
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, use_cache=False))
model.train()

windows = torch.from_numpy(text[: len(text) // LENGTH * LENGTH].reshape(-1, LENGTH))
exported = partita.export(model, {"input_ids": windows[:SAMPLES], "labels": windows[:SAMPLES]})  # the model returns its loss
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
program = partita.compile(exported, partita.Recipe.from_torch(optimizer, clip=1.0), ranks=2)
for m in program.start({"input_ids": windows, "labels": windows}, steps, shuffle=True):
    if m.step % 20 == 0 or m.step == steps - 1:
        print(f"step {m.step}: loss {m.loss:.3f}")
program.load_into(model)

model.eval()
begin = torch.from_numpy(text[None, :16])
print(bytes(model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=40, do_sample=False, pad_token_id=0)[0].tolist()).decode(errors="replace"))
