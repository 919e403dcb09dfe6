"""Vision models of transformers, timm and torchvision, and a UNet of diffusers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case

CLASSES = 5
_VIT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8)
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "ViT": _VIT, "DeiT": _VIT, "Beit": _VIT, "Dinov2": {**_VIT, "mlp_ratio": 2}, "Swin": dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "Swinv2": dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4), "ConvNext": dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    "ConvNextV2": dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]), "ResNet": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "RegNet": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8), "PoolFormer": dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    "Segformer": dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16),
    "MobileViT": dict(image_size=32, patch_size=2, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32]), "Cvt": dict(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    "Levit": dict(image_size=32, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4], down_ops=[["Subsample", 4, 4, 2, 2, 2], ["Subsample", 4, 4, 2, 2, 2]]),
    "FocalNet": dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3]), "Bit": dict(embedding_size=8, hidden_sizes=[32, 32], depths=[1, 1], num_groups=4),
    "PvtV2": dict(image_size=32, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2]), "Dinov2WithRegisters": {**_VIT, "mlp_ratio": 2}, "SwiftFormer": {},
    "MobileNetV1": dict(depth_multiplier=0.25, min_depth=8), "MobileNetV2": dict(depth_multiplier=0.25, min_depth=8), "ViTMSN": _VIT, "Data2VecVision": _VIT,
    "IJepa": _VIT, "Siglip": dict(vision_config=_VIT), "Pvt": dict(image_size=32, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2]),
}  # fmt: skip
VIDEOS: dict[str, dict[str, Any]] = {"VideoMAE": dict(tubelet_size=2), "Timesformer": {}, "Vivit": dict(tubelet_size=[2, 8, 8])}
TIMM: dict[str, dict[str, Any]] = {
    "resnet18": {}, "resnext26ts": {}, "vit_tiny_patch16_224": dict(img_size=32, patch_size=8, depth=2), "convnext_atto": {}, "efficientnet_b0": {}, "mobilenetv3_small_050": {}, "mixer_s32_224": dict(img_size=64),
    "regnetx_002": {}, "deit_tiny_patch16_224": dict(img_size=32, patch_size=8, depth=2), "seresnext26d_32x4d": {}, "ghostnet_050": {}, "repvgg_a0": {}, "edgenext_xx_small": {}, "poolformer_s12": {},
    "xcit_nano_12_p16_224": dict(img_size=64), "nfnet_f0": {}, "dla34": {}, "hardcorenas_a": {}, "mobilevit_xxs": {}, "pit_ti_224": dict(img_size=64),
    "beit_base_patch16_224": dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4),
    "swin_tiny_patch4_window7_224": dict(img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    "eva02_tiny_patch14_224": dict(img_size=28, embed_dim=48, depth=2, num_heads=4),
}  # fmt: skip
TORCHVISION = ["resnet18", "vgg11_bn", "densenet121", "mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf"]


def cases() -> list[Case]:
    found = [Case(f"transformers.{n}", _of_transformers(n, k), _labelled) for n, k in HUGGING_FACE.items()]
    found += [Case(f"transformers.{n}", _of_videos(n, k), _videos) for n, k in VIDEOS.items()]
    found += [Case("transformers.Segformer (pixels)", _segmenter, _outlined)]
    found += [Case(f"timm.{n}", _of_timm(n, k), _images(k.get("img_size", 64)), _classified) for n, k in TIMM.items()]
    found += [Case(f"torchvision.{n}", _of_torchvision(n), _images(64), _classified) for n in TORCHVISION]
    found += [Case("diffusers.UNet2D", _unet, _noisy, lambda output, batch: F.mse_loss(output.sample, batch["noise"]))]
    found += [Case("diffusers.UNet2DCondition", _conditioned, _prompted, lambda output, batch: F.mse_loss(output.sample, batch["noise"]))]
    return [*found, Case("diffusers.DiT", _diffusion_transformer, _named, lambda output, batch: F.mse_loss(output.sample, batch["noise"]))]


def _of_transformers(name: str, keys: dict[str, Any]) -> Any:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, name + "Config")(**{**keys, "num_labels": CLASSES})
        return getattr(transformers, name + "ForImageClassification")(config)

    return make


def _of_videos(name: str, keys: dict[str, Any]) -> Any:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, name + "Config")(**{**_VIT, **keys, "num_frames": 4, "num_labels": CLASSES})
        return getattr(transformers, name + "ForVideoClassification")(config)

    return make


def _videos(samples: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(samples, 4, 3, 32, 32), "labels": torch.randint(0, CLASSES, (samples,))}


def _segmenter() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig(**HUGGING_FACE["Segformer"], num_labels=CLASSES))


def _outlined(samples: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(samples, 3, 32, 32), "labels": torch.randint(0, CLASSES, (samples, 32, 32))}


def _of_timm(name: str, keys: dict[str, Any]) -> Any:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=CLASSES, **keys)

    return make


def _of_torchvision(name: str) -> Any:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, num_classes=CLASSES)

    return make


def _unet() -> nn.Module:
    from diffusers.models.unets.unet_2d import UNet2DModel

    return UNet2DModel(sample_size=16, in_channels=3, out_channels=3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
                       down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4)  # fmt: skip


def _conditioned() -> nn.Module:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    return UNet2DConditionModel(sample_size=16, in_channels=3, out_channels=3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
                                cross_attention_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=4)  # fmt: skip


def _prompted(samples: int) -> dict[str, torch.Tensor]:
    return {**_noisy(samples), "encoder_hidden_states": torch.randn(samples, 6, 8)}


def _diffusion_transformer() -> nn.Module:
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    return DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=3, num_layers=2, sample_size=16, norm_num_groups=1, num_embeds_ada_norm=10)


def _named(samples: int) -> dict[str, torch.Tensor]:
    batch = _noisy(samples)
    return {"hidden_states": batch["sample"], "timestep": batch["timestep"], "class_labels": torch.randint(0, 10, (samples,)), "noise": batch["noise"]}


def _noisy(samples: int) -> dict[str, torch.Tensor]:
    return {"sample": torch.randn(samples, 3, 16, 16), "timestep": torch.randint(0, 1000, (samples,)), "noise": torch.randn(samples, 3, 16, 16)}


def _labelled(samples: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(samples, 3, 32, 32), "labels": torch.randint(0, CLASSES, (samples,))}


def _images(size: int) -> Any:
    return lambda samples: {"x": torch.randn(samples, 3, size, size), "target": torch.randint(0, CLASSES, (samples,))}


def _classified(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(output, batch["target"])
