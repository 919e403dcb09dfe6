"""The scripts and notebooks of tools/python/examples, with few steps."""

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


NOTEBOOKS = [
    ("gpt2_on_text.ipynb", f"text_file, steps = {str(ROOT / 'README.md')!r}, 21", ["torch", "transformers"]),
    ("recommender.ipynb", "steps = 300", ["torch"]),
]


@pytest.mark.parametrize("notebook, parameters, needs", NOTEBOOKS, ids=[c[0] for c in NOTEBOOKS])
def test_a_notebook_runs(notebook, parameters, needs):
    for name in [*needs, "nbclient", "nbformat", "ipykernel"]:
        pytest.importorskip(name, reason=f"{name} is not installed (tools/python/test --torch)")
    import nbclient
    import nbformat

    book = nbformat.read(ROOT / "tools/python/examples" / notebook, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        assert not cell.get("outputs"), "a notebook is committed without outputs"
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = parameters
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(ROOT / "tools/python/examples")}}).execute()
    outputs = [o for cell in book.cells for o in cell.get("outputs", [])]
    said = "".join(o.get("text", "") for o in outputs if o.output_type == "stream" and o.name == "stdout")
    losses = [float(x) for x in re.findall(r"(?:loss|->) ([\d.]+|nan)", said)]
    assert len(losses) > 1 and losses[-1] < losses[0] * 0.9, said
    assert any("text/html" in o.get("data", {}) for o in outputs), "the plan shows itself"
