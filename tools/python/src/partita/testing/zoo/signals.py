"""Spectra, time series, segmentation, recommenders and others that are written in a few lines of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case

LENGTH = 16  # of a series
ITEMS = 40


def cases() -> list[Case]:
    return [
        Case("a Fourier neural operator", _FourierOperator, _series, _squared),
        Case("a spectrogram's loss", lambda: nn.Sequential(nn.Linear(LENGTH, 64)), _named("input"), _spectral),
        Case("N-BEATS", _NBeats, _series, _squared),
        Case("DLinear, quantiles", _DLinear, _series, _pinball),
        Case("SASRec", _SasRec, _histories, lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch["next"].flatten())),
        Case("DeepFM", _DeepFm, _fields, lambda output, batch: F.binary_cross_entropy_with_logits(output, batch["clicked"])),
        Case("two towers", _TwoTowers, _visits, lambda output, batch: F.cross_entropy(output / 0.1, torch.arange(len(output)))),
        Case("a U-Net", _UNet, _masks, lambda output, batch: 1 - (2 * output.sigmoid() * batch["mask"]).sum() / (output.sigmoid() + batch["mask"]).sum()),
        Case("a ConvLSTM", _ConvLstm, _films, lambda output, batch: F.l1_loss(output, batch["target"])),
        Case("a variational autoencoder", _Autoencoder, lambda n: {"x": torch.rand(n, 12), "noise": torch.randn(n, 3)}, _evidence),
        Case("triplets", lambda: _Triplets(), _triplets, lambda output, batch: F.triplet_margin_loss(*output)),
        Case("an ODE by Runge and Kutta", _Ode, _series, _squared),
        Case("a mixture of densities", _Densities, _series, _likelihood),
    ]


def _squared(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(output, batch["target"])


def _named(name: str) -> Any:
    return lambda samples: {name: torch.randn(samples, LENGTH), "target": torch.randn(samples, 64)}


def _series(samples: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(samples, LENGTH), "target": torch.randn(samples, LENGTH)}


class _FourierOperator(nn.Module):
    """Li et al. 2021: the lowest frequencies, mixed over channels by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.modes = nn.Linear(1, 6), nn.Linear(6, 1), 5
        self.weights = nn.Parameter(torch.randn(2, 6, 6, self.modes) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x.unsqueeze(-1)).transpose(1, 2)
        f = torch.view_as_real(torch.fft.rfft(h))[:, :, : self.modes]
        re = torch.einsum("bik,iok->bok", f[..., 0], self.weights[0]) - torch.einsum("bik,iok->bok", f[..., 1], self.weights[1])
        im = torch.einsum("bik,iok->bok", f[..., 0], self.weights[1]) + torch.einsum("bik,iok->bok", f[..., 1], self.weights[0])
        mixed = F.pad(torch.stack([re, im], -1), (0, 0, 0, LENGTH // 2 + 1 - self.modes))
        return self.down(F.gelu(h + torch.fft.irfft(torch.view_as_complex(mixed.contiguous()), n=LENGTH)).transpose(1, 2)).squeeze(-1)


def _spectral(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    def spectrum(wave: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16, dtype=wave.dtype)
        found = torch.view_as_real(torch.stft(wave, 16, 8, window=window, center=False, return_complex=True))
        return (found.square().sum(-1) + 1e-4).sqrt()

    return (spectrum(output) - spectrum(batch["target"])).abs().mean()


class _NBeats(nn.Module):
    """Oreshkin et al. 2020: each block takes away what it explains."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(LENGTH, 24), nn.ReLU(), nn.Linear(24, 2 * LENGTH)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forecast = torch.zeros_like(x)
        for block in self.blocks:
            back, ahead = block(x).chunk(2, dim=1)
            x, forecast = x - back, forecast + ahead
        return forecast


class _DLinear(nn.Module):
    """Zeng et al. 2023: trend and rest, each through one layer; three quantiles."""

    def __init__(self) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(LENGTH, 3 * LENGTH), nn.Linear(LENGTH, 3 * LENGTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        smooth = F.avg_pool1d(F.pad(x.unsqueeze(1), (2, 2), mode="replicate"), 5, 1).squeeze(1)
        return (self.trend(smooth) + self.rest(x - smooth)).unflatten(1, (3, LENGTH))


def _pinball(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=output.dtype).view(1, 3, 1)
    difference = batch["target"].unsqueeze(1) - output
    return torch.maximum(quantiles * difference, (quantiles - 1) * difference).mean()


class _SasRec(nn.Module):
    """Kang and McAuley 2018: the next item, by causal attention over those before."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(ITEMS, 16, padding_idx=0), nn.Embedding(LENGTH, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        h = self.layer(self.items(items) + self.places(torch.arange(LENGTH)), src_mask=mask, is_causal=True)
        return h @ self.items.weight.T


def _histories(samples: int) -> dict[str, torch.Tensor]:
    return {"items": torch.randint(0, ITEMS, (samples, LENGTH)), "next": torch.randint(0, ITEMS, (samples, LENGTH))}


class _DeepFm(nn.Module):
    """Guo et al. 2017: products of all pairs of fields, beside a network; one table for all fields."""

    offsets: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.factors = nn.EmbeddingBag(4 * ITEMS, 1, mode="sum"), nn.Embedding(4 * ITEMS, 8)
        self.deep = nn.Sequential(nn.Linear(32, 16), nn.PReLU(), nn.Linear(16, 1))
        self.register_buffer("offsets", torch.arange(4) * ITEMS)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        places = fields + self.offsets
        v = self.factors(places)
        pairs = (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True) / 2
        return (self.first(places) + pairs + self.deep(v.flatten(1))).squeeze(1)


def _fields(samples: int) -> dict[str, torch.Tensor]:
    return {"fields": torch.randint(0, ITEMS, (samples, 4)), "clicked": torch.randint(0, 2, (samples,)).float()}


class _TwoTowers(nn.Module):
    """Users and items as directions; each user's own item against those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ITEMS, 8), nn.Embedding(ITEMS, 8)
        self.user, self.item = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.user(self.users(user)), dim=-1) @ F.normalize(self.item(self.items(item)), dim=-1).T


def _visits(samples: int) -> dict[str, torch.Tensor]:
    return {"user": torch.randint(0, ITEMS, (samples,)), "item": torch.randint(0, ITEMS, (samples,))}


class _UNet(nn.Module):
    """Ronneberger et al. 2015, with group norms; up by bilinear interpolation and by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU()) for a, b in ((3, 4), (4, 8), (8, 16)))
        self.up = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b, affine=True), nn.LeakyReLU()) for a, b in ((16, 8), (12, 4)))
        self.wider, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        h = self.up[0](torch.cat([self.wider(self.down[2](F.max_pool2d(b, 2))), b], 1))
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.up[1](torch.cat([h, a], 1)))


def _masks(samples: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(samples, 3, 16, 16), "mask": (torch.rand(samples, 1, 16, 16) < 0.3).float()}


class _ConvLstm(nn.Module):
    """Shi et al. 2015: films, one image after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Conv2d(2 + 4, 16, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        h = c = film.new_zeros(film.shape[0], 4, *film.shape[-2:])
        for image in film.unbind(1):
            i, f, g, o = self.gates(torch.cat([image, h], 1)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


def _films(samples: int) -> dict[str, torch.Tensor]:
    return {"film": torch.randn(samples, 4, 2, 8, 8), "target": torch.randn(samples, 2, 8, 8)}


class _Autoencoder(nn.Module):
    """Kingma and Welling 2014; what is drawn comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 6)), nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 12))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + noise * torch.exp(log_variance / 2)), mean, log_variance


def _evidence(output: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits, mean, log_variance = output
    return F.binary_cross_entropy_with_logits(logits, batch["x"]) + 0.1 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()


class _Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Hardswish(), nn.Linear(12, 4))

    def forward(self, anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> Any:
        return self.net(anchor), self.net(near), self.net(far)


def _triplets(samples: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(samples, 6) for name in ("anchor", "near", "far")}


class _Ode(nn.Module):
    """Chen et al. 2018, in four steps of the classical method."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(LENGTH + 1, 24), nn.Tanh(), nn.Linear(24, LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = 0.25

        def slope(t: float, y: torch.Tensor) -> torch.Tensor:
            return self.field(F.pad(y, (0, 1), value=t))

        for k in range(4):
            a = slope(k * step, x)
            b = slope((k + 0.5) * step, x + step / 2 * a)
            c = slope((k + 0.5) * step, x + step / 2 * b)
            x = x + step / 6 * (a + 2 * b + 2 * c + slope((k + 1) * step, x + step * c))
        return x


class _Densities(nn.Module):
    """Bishop 1994: the parameters of two normal distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LENGTH, 16), nn.ELU(), nn.Linear(16, 6 * LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).unflatten(1, (3, 2, LENGTH))


def _likelihood(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    weight, mean, width = output.unbind(1)
    parts = torch.distributions.Normal(mean, F.softplus(width) + 0.1, validate_args=False).log_prob(batch["target"].unsqueeze(1))
    return -torch.logsumexp(F.log_softmax(weight, 1) + parts, dim=1).mean()
