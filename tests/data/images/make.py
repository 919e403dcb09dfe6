"""Pictures and archives of this folder, and what Pillow makes of them: python3 make.py (Pillow up to 12 and NumPy are needed; from 13 on Pillow resizes rows or columns first, whichever is cheaper).

expected.npz: NAME/decoded, NAME/grey (convert("L")), and NAME/FILTER_HEIGHTxWIDTH_TOP_LEFT_HEIGHT_WIDTH: the box, resized.
"""
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
draw = np.random.default_rng(7)


def picture(height, width, channels=3):
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3 + c) + y / (5 - c)) * 100 + 128 for c in range(channels)]
    return np.clip(np.stack(waves, 2) + draw.normal(size=(height, width, channels)) * 20, 0, 255).astype(np.uint8)


def main():
    files = {
        "colour.jpg": dict(image=Image.fromarray(picture(29, 41)), quality=90),
        "progressive.jpg": dict(image=Image.fromarray(picture(40, 24)), quality=70, progressive=True, subsampling=1),
        "grey.jpg": dict(image=Image.fromarray(picture(17, 33, 1)[:, :, 0])),
        "inks.jpg": dict(image=Image.fromarray(picture(12, 21, 4), "CMYK")),
        "colour.png": dict(image=Image.fromarray(picture(31, 20))),
        "palette.png": dict(image=Image.fromarray(picture(16, 16)).quantize(16)),
        "alpha.png": dict(image=Image.fromarray(picture(15, 18, 4), "RGBA")),
        "bits.png": dict(image=Image.fromarray(picture(19, 23, 1)[:, :, 0]).convert("1")),
    }
    expected = {}
    for name, about in files.items():
        about.pop("image").save(HERE / name, **about)
        image = Image.open(HERE / name).convert("RGB")
        expected[f"{name}/decoded"] = np.asarray(image)
        expected[f"{name}/grey"] = np.asarray(image.convert("L"))
    for name in ("colour.jpg",):
        image = Image.open(HERE / name).convert("RGB")
        w, h = image.size
        for filter in ("bilinear", "bicubic"):
            for height, width in ((h, w), (8, 8), (50, 13), (h, 7)):
                for top, left, bh, bw in ((0, 0, h, w), (3, 5, 11, 9), (h - 1, 0, 1, w)):
                    resized = image.crop((left, top, left + bw, top + bh)).resize((width, height), getattr(Image.Resampling, filter.upper()))
                    expected[f"{name}/{filter}_{height}x{width}_{top}_{left}_{bh}_{bw}"] = np.asarray(resized)
    np.savez_compressed(HERE / "expected.npz", **expected)
    for format, name in ((tarfile.USTAR_FORMAT, "ustar"), (tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
        with tarfile.open(HERE / f"{name}.tar", "w", format=format) as tar:
            folder = tarfile.TarInfo("train")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for k, picture_name in enumerate(("colour.jpg", "colour.png", "grey.jpg")):
                key = f"train/v1.0/{'long/' * (0 if format == tarfile.USTAR_FORMAT else 30)}{k:06}{'' if format == tarfile.USTAR_FORMAT else 'ü'}"
                values = io.BytesIO()
                np.save(values, np.arange(4, dtype=np.float64) + k)
                for suffix, content in ((picture_name.split(".")[1], (HERE / picture_name).read_bytes()), ("cls", f"{k + 5}\n".encode()), ("features.npy", values.getvalue())):
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


main()
