"""Speech, time series, several kinds of input, recommenders, graphs and recurrent networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case


def cases() -> list[Case]:
    return [
        Case("transformers.Whisper", _whisper, _speech),
        Case("transformers.Wav2Vec2 (classes)", _of_waves("Wav2Vec2"), _waves),
        Case("transformers.Hubert (classes)", _of_waves("Hubert"), _waves),
        *(Case(f"transformers.{n} (classes)", _of_waves(n, **k), _waves) for n, k in _OF_WAVES.items()),
        Case("transformers.Speech2Text", _speech_to_text, lambda n: {"input_features": torch.randn(n, 32, 16), "labels": torch.randint(3, 96, (n, 12))}),
        Case("transformers.TimeSeriesTransformer", _forecaster("TimeSeriesTransformer"), _observed),
        Case("transformers.Informer", _forecaster("Informer", attention_type="full"), _observed),
        Case("transformers.AST", _ast, lambda n: {"input_values": torch.randn(n, 32, 16), "labels": torch.randint(0, 3, (n,))}),
        Case("transformers.CLIP", _clip, _captioned, lambda output, batch: output.loss),
        Case("transformers.PatchTST", _patch_tst, _series),
        Case("transformers.PatchTSMixer", _patch_mixer, _series),
        Case("a recommender", _Recommender, _clicks, lambda output, batch: F.binary_cross_entropy_with_logits(output, batch["clicked"])),
        Case("a graph network", _GraphNet, _graphs, lambda output, batch: F.cross_entropy(output, batch["target"])),
        Case("an LSTM over words", _Words, lambda n: {"ids": torch.randint(0, 40, (n, 12)), "target": torch.randint(0, 40, (n, 12))}, _next_word),
        Case("an LSTM", _Recurrent, _sequences, lambda output, batch: F.mse_loss(output, batch["target"])),
        Case("a GRU", lambda: _Recurrent(nn.GRU), _sequences, lambda output, batch: F.mse_loss(output, batch["target"])),
        Case("a dilated convolution", _Dilated, _sequences, lambda output, batch: F.smooth_l1_loss(output, batch["target"])),
        Case("torch.nn.Transformer", _Translator, _pairs, lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch["target"].flatten())),
    ]


_SMALL: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def _whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=16, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, use_cache=False))  # fmt: skip


def _speech(samples: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(samples, 16, 32), "labels": torch.randint(3, 96, (samples, 12))}


def _speech_to_text() -> nn.Module:
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    return Speech2TextForConditionalGeneration(Speech2TextConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, input_feat_per_channel=16, max_source_positions=64, max_target_positions=32, num_conv_layers=2, conv_channels=32,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, use_cache=False))  # fmt: skip


def _forecaster(name: str, **own: Any) -> Any:
    """Its loss is the likelihood of a normal distribution: that of Student's t asks for the gamma function, which ONNX lacks."""

    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, name + "Config")(
            prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=2, d_model=16, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, input_size=1, distribution_output="normal",
            **own)  # fmt: skip
        return getattr(transformers, name + "ForPrediction")(config)

    return make


def _observed(samples: int) -> dict[str, torch.Tensor]:
    return {"past_values": torch.rand(samples, 10) + 1, "past_time_features": torch.randn(samples, 10, 2), "past_observed_mask": torch.ones(samples, 10),
            "future_values": torch.rand(samples, 4) + 1, "future_time_features": torch.randn(samples, 4, 2)}  # fmt: skip


_OF_WAVES: dict[str, dict[str, Any]] = {
    "WavLM": {}, "UniSpeech": {}, "Data2VecAudio": dict(conv_pos_kernel_size=3), "SEW": dict(squeeze_factor=2),
    "Wav2Vec2Conformer": dict(position_embeddings_type="relative", conv_depthwise_kernel_size=3),
}  # fmt: skip


def _of_waves(name: str, **own: Any) -> Any:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, name + "Config")(
            **_SMALL, conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, apply_spec_augment=False, num_labels=3, classifier_proj_size=16, layerdrop=0.0, **own)  # fmt: skip
        return getattr(transformers, name + "ForSequenceClassification")(config)

    return make


def _waves(samples: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(samples, 400), "labels": torch.randint(0, 3, (samples,))}


def _ast() -> nn.Module:
    from transformers import ASTConfig, ASTForAudioClassification

    keys: dict[str, Any] = dict(_SMALL, num_labels=3)
    return ASTForAudioClassification(ASTConfig(**keys, max_length=32, num_mel_bins=16, patch_size=8, frequency_stride=8, time_stride=8))


def _clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    class Contrastive(CLIPModel):
        def forward(self, input_ids: Any, pixel_values: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(input_ids=input_ids, pixel_values=pixel_values, return_loss=True)

    return Contrastive(CLIPConfig(
        text_config=dict(**_SMALL, vocab_size=96, max_position_embeddings=16, eos_token_id=2, bos_token_id=1, pad_token_id=0),
        vision_config=dict(**_SMALL, image_size=32, patch_size=8), projection_dim=16))  # fmt: skip


def _captioned(samples: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 96, (samples, 8)), "pixel_values": torch.randn(samples, 3, 32, 32)}


def _patch_tst() -> nn.Module:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    return PatchTSTForPrediction(PatchTSTConfig(num_input_channels=2, context_length=16, prediction_length=4, patch_length=4, patch_stride=4, d_model=16,
                                                num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, loss="mse"))  # fmt: skip


def _patch_mixer() -> nn.Module:
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    return PatchTSMixerForPrediction(PatchTSMixerConfig(num_input_channels=2, context_length=16, prediction_length=4, patch_length=4, patch_stride=4,
                                                        d_model=16, num_layers=2))  # fmt: skip


def _series(samples: int) -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn(samples, 16, 2), "future_values": torch.randn(samples, 4, 2)}


class _Recommender(nn.Module):
    """DLRM's form: embeddings and dense features, and products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        all_ = torch.stack([low] + [table(sparse[:, k]) for k, table in enumerate(self.tables)], dim=1)
        products = all_ @ all_.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([low, products[:, rows, columns]], dim=1)).squeeze(1)


def _clicks(samples: int) -> dict[str, torch.Tensor]:
    return {"dense": torch.randn(samples, 4), "sparse": torch.randint(0, 50, (samples, 3)), "clicked": torch.randint(0, 2, (samples,)).float()}


class _GraphNet(nn.Module):
    """Graph convolutions over dense adjacency matrices, and attention over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.score, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = torch.relu(edges @ self.first(nodes) / edges.sum(-1, keepdim=True).clamp(min=1))
        scores = torch.nn.functional.leaky_relu(self.score(h) + self.score(h).transpose(1, 2)).masked_fill(edges == 0, -1e9)
        return self.out(torch.relu(torch.softmax(scores, -1) @ self.second(h)).amax(1))


def _graphs(samples: int) -> dict[str, torch.Tensor]:
    edges = (torch.rand(samples, 10, 10) < 0.4).float()
    return {"nodes": torch.randn(samples, 10, 6), "edges": ((edges + edges.transpose(1, 2) + torch.eye(10)) > 0).float(), "target": torch.randint(0, 3, (samples,))}


class _Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.cells, self.out = kind(3, 12, num_layers=2, batch_first=True), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x)[0])


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cells, self.out = nn.Embedding(40, 16), nn.LSTM(16, 16, num_layers=2, batch_first=True), nn.Linear(16, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embed(ids))[0])


def _next_word(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["target"].flatten())


class _Dilated(nn.Module):
    """Causal convolutions, each twice as wide as the one before (WaveNet's form)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.utils.parametrizations.weight_norm(nn.Conv1d(3 if k == 0 else 8, 16, 2, dilation=2**k)) for k in range(3))
        self.out = nn.Conv1d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.transpose(1, 2)
        for k, layer in enumerate(self.layers):
            h = F.glu(layer(F.pad(h, (2**k, 0))), dim=1)
        return self.out(h).transpose(1, 2)


def _sequences(samples: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(samples, 12, 3), "target": torch.randn(samples, 12, 1)}


class _Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.core = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, source: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        return self.out(self.core(self.embed(source), self.embed(before), tgt_mask=mask, tgt_is_causal=True))


def _pairs(samples: int) -> dict[str, torch.Tensor]:
    return {"source": torch.randint(0, 30, (samples, 7)), "before": torch.randint(0, 30, (samples, 6)), "target": torch.randint(0, 30, (samples, 6))}
