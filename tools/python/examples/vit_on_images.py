"""A small ViT of timm on images that a DataLoader decodes and augments, step by step in this process.

    python vit_on_images.py [FOLDER] [EPOCHS]      FOLDER/CLASS/*.png; without one, pictures are drawn
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import partita


def draw(folder: Path) -> Path:
    """Horizontal and vertical stripes."""
    rng = np.random.default_rng(0)
    for name in ("horizontal", "vertical"):
        (folder / name).mkdir()
        for k in range(64):
            stripes = (np.arange(40) // rng.integers(2, 6) % 2 * 200)[:, None] + rng.integers(0, 55, (40, 40))
            Image.fromarray((stripes if name == "horizontal" else stripes.T).astype(np.uint8)).save(folder / name / f"{k}.png")
    return folder


torch.manual_seed(0)
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else draw(Path(tempfile.mkdtemp()))
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
augmented = transforms.Compose([transforms.RandomCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
images = ImageFolder(str(folder), augmented)
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True, drop_last=True)

model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=len(images.classes)).train()
exported = partita.export(model, next(iter(loader)), loss=torch.nn.functional.cross_entropy)
program = partita.compile(exported, partita.Recipe.from_torch(torch.optim.AdamW(model.parameters(), lr=1e-3)))
with program.session() as session:
    for epoch in range(epochs):
        losses = [session.step(batch) for batch in loader]
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
program.load_into(model)

model.eval()
with torch.no_grad():
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
print(f"right: {right / (len(loader) * 16):.1%}")
