#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // before jpeglib.h, which uses it
#include <cstring>
#include <string>

extern "C" {
#include <jerror.h>
#include <jpeglib.h>
}

#include "base/cat.h"
#include "runtime/data/records/image.h"

namespace partita::runtime {
namespace {

absl::Status refused(std::string_view why) { return absl::InvalidArgumentError(cat("the picture ", why)); }

absl::Status check_size(int64_t height, int64_t width) {
  if (height > 0 && width > 0 && height <= kMostPixels / width) return absl::OkStatus();
  return refused(cat("has ", height, " x ", width, " pixels, expected 1 to 2^28"));
}

// What libjpeg's functions of ours know of; the library sees its first member.
struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf out;
  char text[JMSG_LENGTH_MAX];
};

void fail_jpeg(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  errors->base.format_message(jpeg, errors->text);
  std::longjmp(errors->out, 1);
}

// Of warnings the end before its time alone is an error: datasets have pictures with stray bytes, which all decoders
// take.
void hear_jpeg(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) fail_jpeg(jpeg);
}

// In a function without objects of its own, which the libraries' long jumps would leave as they are.
bool read_jpeg(jpeg_decompress_struct& jpeg, JpegErrors& errors, std::span<const std::byte> file, Image& image,
               absl::Status& status) {
  if (setjmp(errors.out) != 0) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&jpeg, TRUE);
  image.height = static_cast<int>(jpeg.image_height);
  image.width = static_cast<int>(jpeg.image_width);
  status = check_size(image.height, image.width);
  if (!status.ok()) return true;
  const bool inks = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  image.channels = inks ? 4 : 3;
  jpeg_start_decompress(&jpeg);
  const size_t row = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  image.pixels.resize(row * static_cast<size_t>(image.height));
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW to = image.pixels.data() + jpeg.output_scanline * row;
    jpeg_read_scanlines(&jpeg, &to, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

// a * b / 255, rounded, for bytes.
unsigned scaled(unsigned a, unsigned b) {
  const unsigned product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

// Four inks, stored as 255 minus themselves as Adobe's programs do, become RGB as in Pillow.
void mix_inks(Image& image) {
  const size_t pixels = image.pixels.size() / 4;
  for (size_t k = 0; k < pixels; ++k) {
    const uint8_t* from = image.pixels.data() + 4 * k;
    const unsigned light = from[3];
    uint8_t rgb[3];
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(light - scaled(255u - from[c], light));
    std::copy_n(rgb, 3, image.pixels.data() + 3 * k);
  }
  image.pixels.resize(pixels * 3);
  image.channels = 3;
}

absl::StatusOr<Image> decode_jpeg(std::span<const std::byte> file) {
  JpegErrors errors{};
  jpeg_decompress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = fail_jpeg;
  errors.base.emit_message = hear_jpeg;
  Image image;
  absl::Status status;
  const bool done = read_jpeg(jpeg, errors, file, image, status);
  jpeg_destroy_decompress(&jpeg);
  if (!status.ok()) return status;
  if (!done) return refused(cat("is no whole JPEG: ", errors.text));
  if (image.channels == 4) mix_inks(image);
  return image;
}

// What libpng's functions of ours know of.
struct PngSource {
  std::span<const std::byte> left;
  std::string error;
};

void read_png(png_structp png, png_bytep out, size_t count) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(png));
  if (count > source->left.size()) png_error(png, "it is cut short");
  std::memcpy(out, source->left.data(), count);
  source->left = source->left.subspan(count);
}

[[noreturn]] void fail_png(png_structp png, png_const_charp text) {
  static_cast<PngSource*>(png_get_error_ptr(png))->error = text;
  png_longjmp(png, 1);
}

void warn_png(png_structp, png_const_charp) {}

bool read_rows(png_structp png, png_infop info, Image& image, std::vector<png_bytep>& rows, absl::Status& status) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  image.height = static_cast<int>(png_get_image_height(png, info));
  image.width = static_cast<int>(png_get_image_width(png, info));
  status = check_size(image.height, image.width);
  if (!status.ok()) return true;
  png_set_expand(png);  // palettes, fewer than 8 bits
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t row = png_get_rowbytes(png, info);
  if (row != static_cast<size_t>(image.width) * 3) png_error(png, "its rows have another size than RGB's");
  image.pixels.resize(row * static_cast<size_t>(image.height));
  rows.resize(static_cast<size_t>(image.height));
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = image.pixels.data() + y * row;
  png_read_image(png, rows.data());
  png_read_end(png, nullptr);
  return true;
}

absl::StatusOr<Image> decode_png(std::span<const std::byte> file) {
  PngSource source{file, ""};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail_png, warn_png);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  Image image{.channels = 3};
  std::vector<png_bytep> rows;
  absl::Status status;
  bool done = false;
  if (info != nullptr) {
    png_set_read_fn(png, &source, read_png);
    png_set_user_limits(png, kMostPixels, kMostPixels);
    done = read_rows(png, info, image, rows, status);
  }
  png_destroy_read_struct(&png, info == nullptr ? nullptr : &info, nullptr);
  if (!status.ok()) return status;
  if (!done) return refused(cat("is no whole PNG: ", source.error.empty() ? "no memory" : source.error));
  return image;
}

// Rec. 601's weights in 16 bits, rounded, as Pillow's convert("L").
void make_grey(Image& image) {
  const size_t pixels = image.pixels.size() / 3;
  for (size_t k = 0; k < pixels; ++k) {
    const uint8_t* p = image.pixels.data() + 3 * k;
    image.pixels[k] = static_cast<uint8_t>((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
  }
  image.pixels.resize(pixels);
  image.channels = 1;
}

}  // namespace

bool is_image_suffix(std::string_view suffix) { return suffix == "jpg" || suffix == "jpeg" || suffix == "png"; }

absl::StatusOr<Image> decode_image(std::span<const std::byte> file, int channels) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 8));
  absl::StatusOr<Image> image = start.starts_with("\xFF\xD8")  ? decode_jpeg(file)
                                : start == "\x89PNG\r\n\x1A\n" ? decode_png(file)
                                                               : refused("is neither a JPEG nor a PNG");
  if (image.ok() && channels == 1) make_grey(*image);
  return image;
}

}  // namespace partita::runtime
