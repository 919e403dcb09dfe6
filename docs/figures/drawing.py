"""What the scripts of this folder draw with: boxes, arrows and words, in colours that are readable on light and on dark pages."""
from html import escape

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .name { font-weight: 600; }
  .small { font-size: 11.5px; fill: #59636e; }
  .file { font: 12px ui-monospace, monospace; }
  .box { fill: #ffffff; stroke: #8c959f; }
  .step { fill: #ddf4ff; stroke: #0969da; }
  .rank { fill: #dafbe1; stroke: #1a7f37; }
  .proof { fill: #fff8c5; stroke: #9a6700; }
  .line { stroke: #59636e; stroke-width: 1.5; fill: none; }
  .tip { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .small { fill: #9198a1; }
    .box { fill: #151b23; stroke: #656c76; }
    .step { fill: #0c2d6b; stroke: #4493f8; }
    .rank { fill: #033a16; stroke: #3fb950; }
    .proof { fill: #341a00; stroke: #d29922; }
    .line { stroke: #9198a1; }
    .tip { fill: #9198a1; }
  }
"""


def text(x, y, words, style="", anchor="middle"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def box(x, y, width, height, style):
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{style}"/>'


def arrow(*points):
    (x0, y0), (x1, y1) = points[-2:]
    right, down = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    tip = [(x1, y1), (x1 - 7 * right - 4 * down, y1 - 7 * down - 4 * right), (x1 - 7 * right + 4 * down, y1 - 7 * down + 4 * right)]
    way = [*points[:-1], (x1 - 5 * right, y1 - 5 * down)]
    return (f'<path class="line" d="M{" L".join(f"{x},{y}" for x, y in way)}"/>'
            f'<path class="tip" d="M{" L".join(f"{x},{y}" for x, y in tip)} Z"/>')


def write(width, height, label, parts):
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">')
    print(f"<style>{STYLE}</style>")
    print("\n".join(parts))
    print("</svg>")
