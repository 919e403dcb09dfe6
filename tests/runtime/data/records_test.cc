// Pictures and archives as samples, against what Pillow and Python's tarfile made (tests/data/images/make.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/data/data_source.h"
#include "runtime/data/records/image_transform.h"
#include "runtime/data/records/record_store.h"
#include "runtime/files/npz.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFolder = std::string(PARTITA_TEST_DATA) + "/images/";
constexpr float kMean = 0.5f, kStd = 0.25f;

absl::StatusOr<Image> decoded(const std::string& name, int channels = 3) {
  const std::string file = TempFolder::read(kFolder + name);
  return decode_image(std::as_bytes(std::span(file)), channels);
}
std::vector<uint8_t> bytes_of(const NpyArray& array) {
  const auto* from = reinterpret_cast<const uint8_t*>(array.bytes.data());
  return {from, from + array.bytes.size()};
}
std::string message(const absl::Status& status) { return std::string(status.message()); }

TEST(Pictures, AreDecodedAndResizedAsPillowDoes) {
  const NpzFile expected = *NpzFile::open(kFolder + "expected.npz");
  int resized = 0;
  for (const std::string& name : expected.names()) {
    const std::string file = name.substr(0, name.find('/')), what = name.substr(name.find('/') + 1);
    const Image image = *decoded(file, what == "grey" ? 1 : 3);
    ImageBox box;
    int height = 0, width = 0;
    char filter[16];
    if (std::sscanf(what.c_str(), "%15[a-z]_%dx%d_%d_%d_%d_%d", filter, &height, &width, &box.top, &box.left,
                    &box.height, &box.width) == 7) {
      const Image made = resize_image(image, box, height, width, *parse_enum<ImageFilter>(filter));
      EXPECT_EQ(made.pixels, bytes_of(*expected.read(name))) << name;
      ++resized;
    } else {
      EXPECT_EQ(image.pixels, bytes_of(*expected.read(name))) << name;
    }
  }
  EXPECT_EQ(resized, 24);
}

TEST(Pictures, ThatAreBrokenAreRefused) {
  for (const std::string name : {"colour.jpg", "progressive.jpg", "colour.png", "palette.png"}) {
    const std::string file = TempFolder::read(kFolder + name);
    for (size_t size = 0; size < file.size() - 16; size += 7) {
      const std::string cut = file.substr(0, size);
      EXPECT_FALSE(decode_image(std::as_bytes(std::span(cut)), 3).ok()) << name << " " << size;
    }
    for (size_t at = 0; at < file.size(); at += 3) {  // whatever comes of it, it comes back
      std::string other = file;
      other[at] = static_cast<char>(other[at] ^ (1 << at % 8));
      (void)decode_image(std::as_bytes(std::span(other)), 3);
    }
  }
  const std::string text = "GIF89a";
  EXPECT_THAT(message(decode_image(std::as_bytes(std::span(text)), 3).status()), HasSubstr("neither a JPEG nor a PNG"));
}

ImagePlan plan(const ImageSettings& s, int height, int width, uint64_t sample = 0, uint64_t epoch = 0) {
  return *plan_image(s, height, width, 24, 24, {.seed = 1, .epoch = epoch, .sample = sample});
}

TEST(ImagePlan, CutsAsTorchvisionDoes) {
  // Resize(32), CenterCrop(24) of 100 x 61: 52 x 32, rows from round(28 / 2), columns from round(8 / 2).
  EXPECT_EQ(plan({.resize = {32}}, 100, 61), (ImagePlan{52, 32, 0, {14, 4, 24, 24}}));
  EXPECT_EQ(plan({}, 61, 100), (ImagePlan{24, 39, 0, {0, 8, 24, 24}}));  // 7.5 to the even
  EXPECT_EQ(plan({.resize = {40, 30}}, 61, 100), (ImagePlan{40, 30, 0, {8, 3, 24, 24}}));
  EXPECT_EQ(plan({.crop = ImageCrop::kNone}, 61, 100), (ImagePlan{24, 24, 0, {0, 0, 24, 24}}));
  EXPECT_THAT(message(plan_image({.crop = ImageCrop::kRandom}, 20, 30, 24, 24, {}).status()),
              HasSubstr("say images: {resize: 24}"));
  EXPECT_FALSE(plan_image({.resize = {60000}}, 1, 1 << 20, 24, 24, {}).ok());
}

TEST(ImagePlan, DrawsWithinItsBounds_AnewEachEpoch) {
  const ImageSettings s = {.crop = ImageCrop::kRandomResized, .flip = 0.25};
  std::set<std::tuple<int, int, int, int>> boxes;
  int flipped = 0;
  double area = 0;
  for (uint64_t k = 0; k < 4000; ++k) {
    const ImagePlan p = plan(s, 300, 400, k);
    EXPECT_EQ(p, plan(s, 300, 400, k));
    boxes.insert({p.box.top, p.box.left, p.box.height, p.box.width});
    EXPECT_TRUE(p.box.top >= 0 && p.box.left >= 0 && p.box.top + p.box.height <= 300 &&
                p.box.left + p.box.width <= 400);
    const double ratio = static_cast<double>(p.box.width) / p.box.height;
    EXPECT_TRUE(ratio > 0.73 && ratio < 1.37) << ratio;
    area += p.box.height * p.box.width / 120000.0;
    flipped += p.flip;
  }
  EXPECT_GT(boxes.size(), 3900u);
  EXPECT_NEAR(area / 4000, 0.44, 0.02);  // torchvision's own draws: 0.440
  EXPECT_NEAR(flipped / 4000.0, 0.25, 0.03);
  EXPECT_NE(plan(s, 300, 400, 7, 0), plan(s, 300, 400, 7, 1));
  const ImageSettings padded = {.crop = ImageCrop::kRandom, .padding = 4};
  int least = 9, most = -1;
  for (uint64_t k = 0; k < 200; ++k) {
    const ImagePlan p = plan(padded, 24, 24, k);
    least = std::min({least, p.box.top, p.box.left}), most = std::max({most, p.box.top, p.box.left});
  }
  EXPECT_EQ(std::pair(least, most), std::pair(0, 8));
}

class Records : public testing::Test {
 protected:
  // dogs/{a.jpg, sub/b.png}, cats/c.JPG and a stray picture.
  std::string folder() {
    namespace fs = std::filesystem;
    const std::string root = out_ / "train";
    for (const char* sub : {"/dogs/sub", "/cats"}) fs::create_directories(root + sub);
    for (const auto& [from, to] : {std::pair{"colour.jpg", "/dogs/a.jpg"},
                                   {"colour.png", "/dogs/sub/b.png"},
                                   {"grey.jpg", "/cats/c.JPG"},
                                   {"grey.jpg", "/stray.jpg"}})
      fs::copy_file(kFolder + from, root + to);
    return root;
  }
  std::vector<InputSpec> inputs_ = {{"x", DType::kF32, {3, 8, 8}}, {"target", DType::kI64, {}, true, {0, 10}}};
  TempFolder out_;
};

template <typename T>
std::vector<T> fetch(const DataSource& source, int64_t step, int input, size_t elements) {
  std::vector<T> out(elements);
  const absl::Status read = source.fetch(step, 0, source.global_batch(), input, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(read.ok()) << read;
  return out;
}

TEST_F(Records, OfAFolderHaveItsClasses) {
  DataConfig config = {.kind = guess_data_kind(folder()), .path = out_ / "train"};
  EXPECT_EQ(config.kind, DataKind::kImages);
  config.images = {.crop = ImageCrop::kNone, .mean = {kMean, kMean, kMean}, .std = {kStd, kStd, kStd}};
  const auto source = *DataSource::open(config, inputs_, 3);
  EXPECT_THAT(source->told()[0], HasSubstr("3 samples of 2 classes, 0: 'cats' to 1: 'dogs'"));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 1, 3), ElementsAre(0, 1, 1));
  const std::vector<float> x = fetch<float>(*source, 0, 0, 3 * 3 * 64);
  const NpzFile expected = *NpzFile::open(kFolder + "expected.npz");
  const std::vector<uint8_t> pixels = bytes_of(*expected.read("colour.jpg/bilinear_8x8_0_0_29_41"));
  for (size_t c = 0; c < 3; ++c) {
    for (size_t p = 0; p < 64; ++p)
      ASSERT_EQ(x[192 + c * 64 + p], (static_cast<float>(pixels[p * 3 + c]) / 255.0f - kMean) / kStd) << c << " " << p;
  }
  EXPECT_THAT((*source->locate(0))[2], HasSubstr("dogs/sub/b.png"));
  // Channels last, and as bytes, which are not normalized: that is refused.
  inputs_[0] = {"x", DType::kU8, {8, 8, 3}};
  EXPECT_THAT(
      DataSource::open(config, inputs_, 2).status().message(),
      HasSubstr("for graph input 'x': images: mean and std are of pixels in [0, 1], and this input takes bytes"));
  config.images.mean = config.images.std = {};
  EXPECT_EQ(fetch<uint8_t>(**DataSource::open(config, inputs_, 2), 0, 0, 2 * 192), [&] {
    std::vector<uint8_t> both = fetch<uint8_t>(**DataSource::open(config, inputs_, 1), 0, 0, 192);
    both.insert(both.end(), pixels.begin(), pixels.end());
    return both;
  }());
}

// torchvision's samples of this folder, in its order.
TEST_F(Records, OfAFolderComeAsTorchvisionHasThem) {
  for (const std::string name : {"a/z.png", "a/sub/x.png", "a/sub-y/x.png", "a/sub/deep/q.png", "b/1.png", "top.bmp"}) {
    std::filesystem::create_directories(std::filesystem::path(out_ / name).parent_path());
    out_.write(name, "");
  }
  const auto store = *open_image_folder(out_.path());
  std::vector<std::string> order;
  for (int64_t k = 0; k < store->records(); ++k) order.push_back(store->locate(k).substr(out_.path().size() + 2));
  EXPECT_THAT(order, ElementsAre("a/z.png'", "a/sub/x.png'", "a/sub-y/x.png'", "a/sub/deep/q.png'", "b/1.png'"));
  std::filesystem::create_symlink("nowhere", out_ / "b/2.png");
  EXPECT_EQ((*open_image_folder(out_.path()))->records(), 6);  // and is an error when it is read
  out_.write("b/2.webp", "");
  EXPECT_THAT(message(open_image_folder(out_.path()).status()), HasSubstr("holds 'b/2.webp', expected .jpg"));
}

TEST_F(Records, AreDrawnAlikeByEveryRankAndAnewEachEpoch) {
  DataConfig config = {.kind = DataKind::kImages, .path = folder(), .shuffle = true, .seed = 3, .epochs = 0};
  config.images = {.crop = ImageCrop::kRandomResized, .flip = 0.5};
  const auto all = *DataSource::open(config, inputs_, 3), one = *DataSource::open(config, inputs_, 3);
  const size_t sample = 192;
  const std::vector<float> batch = fetch<float>(*all, 5, 0, 3 * sample);
  for (int64_t k = 0; k < 3; ++k) {
    std::vector<float> own(sample);
    ASSERT_TRUE(one->fetch(5, k, 1, 0, std::as_writable_bytes(std::span(own))).ok());
    EXPECT_TRUE(std::equal(own.begin(), own.end(), batch.begin() + k * static_cast<int64_t>(sample)));
  }
  std::set<std::vector<float>> seen;
  for (int64_t step = 0; step < 20; ++step) {
    const std::vector<float> x = fetch<float>(*all, step, 0, 3 * sample);
    for (size_t k = 0; k < 3; ++k)
      seen.insert(
          {x.begin() + static_cast<ptrdiff_t>(k * sample), x.begin() + static_cast<ptrdiff_t>((k + 1) * sample)});
  }
  EXPECT_GT(seen.size(), 55u);
}

TEST_F(Records, OfArchivesAreTheirMembers) {
  for (const std::string name : {"ustar", "gnu", "pax"}) {
    DataConfig config = {.kind = guess_data_kind(kFolder + name + ".tar"), .path = kFolder + name + ".tar"};
    config.columns = {{"values", "features.npy"}};
    inputs_.resize(2);
    inputs_.push_back({"values", DType::kF32, {4}});
    const auto source = *DataSource::open(config, inputs_, 3);
    EXPECT_THAT(fetch<int64_t>(*source, 0, 1, 3), ElementsAre(5, 6, 7)) << name;
    EXPECT_THAT(fetch<float>(*source, 0, 2, 12), ElementsAre(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5)) << name;
    const std::string place = (*source->locate(0))[1];
    EXPECT_THAT(place, HasSubstr(name == "ustar" ? "train/v1.0/000001" : "long/000001ü")) << name;
  }
  for (int k = 8; k < 12; ++k)
    std::filesystem::copy_file(kFolder + "ustar.tar",
                               out_ / ("s-" + std::string(k < 10 ? "0" : "") + std::to_string(k) + ".tar"));
  EXPECT_EQ((*open_tar_store(out_ / "s-{09..11}.tar"))->records(), 9);
  EXPECT_EQ((*open_tar_store(out_.path()))->records(), 12);
  out_.write("s-11.tar.idx", "");
  out_.write("s-12.tar.gz", "\x1f\x8b________");  // not passed over
  EXPECT_THAT(message(open_tar_store(out_.path()).status()), HasSubstr("s-12.tar.gz' is compressed"));
  std::filesystem::remove(out_ / "s-12.tar.gz");
  EXPECT_EQ((*open_tar_store(out_.path()))->records(), 12);
  EXPECT_THAT(message(open_tar_store(out_ / "s-{11..13}.tar").status()), HasSubstr("s-12.tar"));
  EXPECT_THAT(message(open_tar_store(out_ / "s-{a..b}.tar").status()), HasSubstr("expected numbers in braces"));
}

TEST_F(Records, ThatDoNotFitAreToldWithTheirName) {
  DataConfig config = {.kind = DataKind::kWebDataset, .path = kFolder + "ustar.tar"};
  const auto fault = [&](const std::string& input, DType dtype, const std::vector<int64_t>& shape, const char* column) {
    config.columns.clear();
    if (column != nullptr) config.columns[input] = column;
    auto source = DataSource::open(config, {{input, dtype, shape}}, 3);
    if (!source.ok()) return message(source.status());
    std::vector<std::byte> out(static_cast<size_t>(3 * sample_bytes((*source)->inputs()[0])));
    return message((*source)->fetch(0, 0, 3, 0, out));
  };
  EXPECT_THAT(fault("a", DType::kF32, {5}, nullptr), HasSubstr("say columns: {a: SUFFIX}"));
  EXPECT_THAT(fault("a", DType::kF32, {5}, "features.npy"), HasSubstr("has shape [4], but graph input 'a' needs [5]"));
  EXPECT_THAT(fault("a", DType::kI64, {}, "class"), HasSubstr("no folders of classes"));
  EXPECT_THAT(fault("a", DType::kI64, {}, "jpg"), HasSubstr("a picture needs numbers of"));
  EXPECT_THAT(fault("a", DType::kI64, {}, "png"), HasSubstr("a picture needs"));
  EXPECT_THAT(fault("a", DType::kF32, {3, 8, 8}, "png"), HasSubstr("has no .png; it has 'jpg', 'cls', 'features.npy'"));
  EXPECT_THAT(fault("a", DType::kI64, {}, "txt"), HasSubstr("has no .txt"));
  const std::string whole = TempFolder::read(kFolder + "ustar.tar");
  for (size_t size = 100; size < 9000; size += 377) {
    const auto cut = open_tar_store(out_.write("cut.tar", whole.substr(0, size)));
    EXPECT_TRUE(!cut.ok() || (*cut)->records() <= 3);
    EXPECT_TRUE(!cut.ok() || size % 512 == 0) << size;
  }
  for (size_t at = 0; at < 2048; ++at) {  // a header that is damaged is no header
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 0x11);
    (void)open_tar_store(out_.write("damaged.tar", other));
  }
  const std::string picture = whole.substr(512, 2560);
  EXPECT_THAT(message(open_tar_store(out_.write("twice.tar", picture + whole.substr(512))).status()),
              HasSubstr("byte 2560: the sample has 'train/v1.0/000000.jpg' already"));
  EXPECT_THAT(message(open_tar_store(out_.write("x.tar", "\x1f\x8b________")).status()), HasSubstr("compressed"));
  EXPECT_THAT(message(open_image_folder(out_ / "none").status()), HasSubstr("cannot be read"));
  std::filesystem::create_directories(out_ / "empty/birds");
  EXPECT_THAT(message(open_image_folder(out_ / "empty").status()), HasSubstr("no picture"));
}

}  // namespace
}  // namespace partita::runtime
