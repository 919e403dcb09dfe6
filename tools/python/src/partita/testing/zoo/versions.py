"""Under which versions a page or an export was made."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]

_PACKAGES = ("torch", "transformers", "timm", "torchvision", "diffusers")


def versions() -> str:
    return ", ".join(f"{p} {_version(p)}" for p in _PACKAGES)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"
