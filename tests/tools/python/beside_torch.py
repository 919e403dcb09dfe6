"""Training by torch, for what Partita trains to be held against."""


def first(batch, count=8):
    return tuple(v[:count] for v in batch.values())


def train_with_torch(module, optimizer, batch, loss, steps, scheduler=None):
    for k in range(steps):
        optimizer.zero_grad()
        x, y = (v[8 * k : 8 * k + 8] for v in batch.values())
        loss(module(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def largest_difference(a, b):
    pairs = zip(a.state_dict().items(), b.state_dict().values())
    return max(float((x.double() - y.double()).abs().max()) for (_, x), y in pairs)
