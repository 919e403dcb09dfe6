"""Small models and recipes that the tests of the package share."""

import subprocess

import numpy as np
import pytest

from partita.programs import partita_program


@pytest.fixture(scope="session")
def mlp(tmp_path_factory):
    """An ONNX file: 16 features to 4 classes, with weights."""
    path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    subprocess.run([partita_program(), "model", "mlp", "--layers", "16,32,4", "--with-weights", "--batch", "8", "-o", path, "--quiet"], check=True)
    return path


@pytest.fixture(scope="session")
def points():
    """64 samples whose class follows from the features."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(64, 16)).astype(np.float32)
    return {"x": x, "target": np.abs(x[:, :4]).argmax(axis=1)}


@pytest.fixture(scope="session")
def images():
    torch = pytest.importorskip("torch")
    draw = torch.Generator().manual_seed(1)
    return {"x": torch.randn(32, 3, 8, 8, generator=draw), "target": torch.randint(0, 5, (32,), generator=draw)}
