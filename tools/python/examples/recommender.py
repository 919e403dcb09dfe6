"""A recommender of one's own: embeddings, dense features and products of all pairs (DLRM's form), with a loss of one's own.

    python recommender.py [STEPS]
"""

import sys

import torch
from torch import nn

import partita


class Recommender(nn.Module):
    def __init__(self, rows: int = 200, width: int = 8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, width))
        self.top = nn.Sequential(nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse):
        low = self.bottom(dense)
        features = torch.stack([low] + [table(sparse[:, k]) for k, table in enumerate(self.tables)], dim=1)
        products = features @ features.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([low, products[:, rows, columns]], dim=1)).squeeze(1)


def loss(logits, batch):
    """Clicks are rare: those that were count more."""
    weight = 1 + 3 * batch["clicked"]
    return (weight * nn.functional.binary_cross_entropy_with_logits(logits, batch["clicked"], reduction="none")).mean()


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
torch.manual_seed(0)
model = Recommender()
data = {"dense": torch.randn(4096, 4), "sparse": torch.randint(0, 200, (4096, 3))}
data["clicked"] = ((data["dense"][:, 0] + (data["sparse"][:, 0] % 2) * 2) > 2).float()

exported = partita.export(model, {name: values[:64] for name, values in data.items()}, loss)
program = partita.compile(exported, partita.Recipe.from_torch(torch.optim.Adam(model.parameters(), lr=0.01)), ranks=2)
losses = [m.loss for m in program.train(data, steps, shuffle=True)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
program.load_into(model)
with torch.no_grad():
    found = model(data["dense"], data["sparse"]) > 0
print(f"right: {(found == data['clicked'].bool()).float().mean():.1%}")
