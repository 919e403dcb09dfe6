"""Architectures of transformers, timm, torchvision and diffusers, small, each trained four steps by torch and by Partita."""
