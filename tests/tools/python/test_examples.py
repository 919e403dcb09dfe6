"""The scripts of tools/python/examples, with few steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CASES = [
    ("gpt2_on_text.py", [str(ROOT / "README.md"), "21"], ["torch", "transformers"]),
    ("lora_on_llama.py", ["20"], ["torch", "transformers", "peft"]),
    ("recommender.py", ["300"], ["torch"]),
    ("vit_on_images.py", [], ["torch", "timm", "torchvision"]),
]


@pytest.mark.parametrize("script, arguments, needs", CASES, ids=[c[0] for c in CASES])
def test_the_loss_falls(script, arguments, needs):
    for name in needs:
        pytest.importorskip(name, reason=f"{name} is not installed (tools/python/test --torch)")
    done = subprocess.run([sys.executable, ROOT / "tools/python/examples" / script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"(?:loss|->) ([\d.]+|nan)", done.stdout)]
    assert len(losses) > 1 and losses[-1] < losses[0] * 0.9, done.stdout
