#!/usr/bin/env python3
"""Draws docs/figures/tensor_split.svg: two layers whose hidden features two ranks share.

  docs/figures/tensor_split.py > docs/figures/tensor_split.svg     (tools/check_documents compares the two)
"""
from drawing import arrow, box, text, write

UNIT = 13  # of one element


def matrix(x, y, rows, columns, style, name, types):
    """A tensor as a box of its shape, with its name and its local shape below."""
    width, height = columns * UNIT, rows * UNIT
    middle = x + width / 2
    return [box(x, y, width, height, style), text(middle, y + height + 16, name, "name"), text(middle, y + height + 31, types, "file")]


def rank(number, y):
    shade = "rank" if number == 0 else "proof"
    out = [text(20, y + 56, f"rank {number}", "name", "start")]
    out += matrix(96, y, 8, 4, "box", "x", "[8,4]")
    out += [text(170, y + 58, "@", "name")]
    out += matrix(192, y + 26, 4, 4, shade, "fc1.weight", "[4,4]")
    out += [arrow((276, y + 52), (318, y + 52)), text(297, y + 42, "relu", "small")]
    out += matrix(336, y, 8, 4, shade, "hidden", "[8,4]")
    out += [text(414, y + 58, "@", "name")]
    out += matrix(446, y + 26, 2, 4, shade, "fc2.weight", "[2,4]")
    out += [text(524, y + 58, "=", "name")]
    out += matrix(556, y, 8, 2, shade, "partial", "[8,2]")
    out.append(arrow((600, y + 52), (660, y + 52)))
    return out


def draw():
    out = [*rank(0, 20), *rank(1, 190)]
    out += [box(660, 40, 96, 240, "step"), text(708, 152, "all-reduce", "name"), text(708, 170, "sums the two", "small")]
    for y in (20, 190):
        out.append(arrow((756, y + 52), (806, y + 52)))
        out += matrix(820, y, 8, 2, "box", "result", "[8,2]")
    return out


write(900, 350, "Each of two ranks multiplies by its half of both weights; an all-reduce sums the two partial results", draw())
