// Images and webdataset: a record's files become the graph's inputs, on several threads: pictures are decoded.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <mutex>

#include "absl/strings/ascii.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/records/image_transform.h"
#include "runtime/data/records/record_store.h"
#include "runtime/data/sample_reader.h"
#include "runtime/data/shards/sharded_store.h"
#include "runtime/files/in_parallel.h"
#include "runtime/files/npy.h"

namespace partita::runtime {
namespace {

constexpr std::string_view kClass = "class", kImage = "image";

enum class ColumnKind { kImage, kFolderClass, kInteger, kArray };

struct Column {
  InputSpec spec;
  ColumnKind kind = ColumnKind::kArray;
  std::string suffix;  // of the file; empty: of whichever picture the record has
  bool channels_last = false;
  int channels = 0, height = 0, width = 0;  // of pictures
  ConvertFunction convert = nullptr;        // from float, or from int64; not of arrays
};

// Sets channels, height, width and order where the input can take a picture.
bool takes_picture(const InputSpec& spec, Column& column) {
  const std::vector<int64_t>& s = spec.sample_shape;
  constexpr int64_t kLargest = 1 << 14;
  if (s.size() != 3 || std::any_of(s.begin(), s.end(), [](int64_t n) { return n > kLargest; })) return false;
  const auto is_channels = [](int64_t n) { return n == 1 || n == 3; };
  if (!(is_float(spec.dtype) || spec.dtype == DType::kU8) || (!is_channels(s[0]) && !is_channels(s[2]))) return false;
  column.channels_last = !is_channels(s[0]);
  const size_t c = column.channels_last ? 2 : 0, h = column.channels_last ? 0 : 1;
  column.channels = static_cast<int>(s[c]);
  column.height = static_cast<int>(s[h]);
  column.width = static_cast<int>(s[h + 1]);
  return true;
}

class RecordReader : public SampleReader {
 public:
  RecordReader(std::unique_ptr<RecordStore> store, std::vector<Column> columns, const DataConfig& config)
      : store_(std::move(store)),
        columns_(std::move(columns)),
        images_(config.images),
        seed_(config.seed),
        shuffled_(config.shuffle),
        workers_(config.workers > 0 ? config.workers : batch_threads()) {}

  int64_t samples() const override { return store_->records(); }
  int64_t shuffle_window() const override { return store_->shuffle_window(); }
  void give_up() const override { store_->give_up(); }
  std::string describe() const override { return store_->describe(); }
  std::string locate(int64_t sample, uint64_t /*epoch*/) const override { return store_->locate(sample); }

  std::vector<std::string> classes() const override { return store_->classes(); }
  // How many there are of each class, by its name.
  std::string fingerprint() const override {
    const std::vector<std::string> names = store_->classes();
    std::string all = cat(store_->records(), " records");
    if (names.empty() || store_->records() == kUnlimited) return all;
    std::vector<int64_t> counts(names.size(), 0);
    for (int64_t k = 0; k < store_->records(); ++k) {
      if (const std::optional<int64_t> number = store_->folder_class(k)) ++counts[static_cast<size_t>(*number)];
    }
    std::string by_name;
    for (size_t k = 0; k < names.size(); ++k) append(by_name, counts[k], " ", quote(names[k], 1000), "; ");
    return cat(all, " ", fingerprint_of(as_byte_span(by_name)));
  }

  std::vector<std::string> told() const override {
    std::vector<std::string> lines;
    const std::vector<std::string> classes = store_->classes();
    const int64_t records = store_->records();
    lines.push_back(cat(store_->describe(), ": ",
                        records == kUnlimited ? std::string("as many samples as come") : cat(records, " samples"),
                        classes.empty() ? ""
                                        : cat(" of ", classes.size(), " classes, 0: ", quote(classes.front()), " to ",
                                              classes.size() - 1, ": ", quote(classes.back()))));
    if (classes.size() > 1 && !shuffled_)
      lines.push_back("samples come class after class; --shuffle, or shuffle: true under data, mixes them");
    for (const Column& c : columns_) {
      lines.push_back(cat(quote(c.spec.name), ": ",
                          c.kind == ColumnKind::kFolderClass ? "the class of the folder"
                          : c.kind != ColumnKind::kImage     ? cat(".", c.suffix)
                                                             : describe_pictures(c)));
    }
    return lines;
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const Column& c = columns_[static_cast<size_t>(input)];
    const auto bytes = static_cast<size_t>(sample_bytes(c.spec));
    std::atomic<bool> failed = false;
    std::mutex mutex;
    absl::Status worst;
    in_parallel(c.kind == ColumnKind::kImage ? static_cast<int>(workers_) : 1, static_cast<size_t>(run.count),
                [&](size_t k) {
                  if (failed) return;
                  absl::Status done =
                      read_one(c, run.first + static_cast<int64_t>(k), run.epoch, out.subspan(k * bytes, bytes));
                  if (done.ok()) return;
                  failed = true;
                  const std::lock_guard lock(mutex);
                  worst.Update(std::move(done));
                });
    return worst;
  }

 private:
  std::string describe_pictures(const Column& c) const {
    return cat("pictures, ", enum_name(images_.crop), " ", c.height, " x ", c.width,
               images_.flip > 0 ? ", flipped" : "",
               c.spec.dtype == DType::kU8                    ? ", from 0 to 255"
               : images_.mean.empty() && images_.std.empty() ? ", from 0 to 1"
                                                             : ", normalized");
  }

  absl::Status read_one(const Column& c, int64_t record, uint64_t epoch, std::span<std::byte> out) const {
    if (c.kind == ColumnKind::kFolderClass) return put(c, record, *store_->folder_class(record), out);
    absl::StatusOr<FieldBytes> field = store_->field(record, c.suffix.empty() ? picture_of(record) : c.suffix);
    if (!field.ok()) return field.status();
    const absl::Status done = c.kind == ColumnKind::kImage   ? read_picture(c, record, epoch, field->bytes, out)
                              : c.kind == ColumnKind::kArray ? read_array(c, *field, out)
                                                             : read_integer(c, record, field->bytes, out);
    return with_context(done, store_->locate(record));
  }

  std::string picture_of(int64_t record) const {
    for (const std::string& suffix : store_->fields(record)) {
      if (is_image_suffix(suffix)) return suffix;
    }
    return "jpg";
  }

  absl::Status put(const Column& c, int64_t record, int64_t value, std::span<std::byte> out) const {
    if (c.convert(reinterpret_cast<const std::byte*>(&value), out.data(), 1) < 0) return absl::OkStatus();
    return absl::InvalidArgumentError(cat(store_->locate(record), ": ", value, " is not a ", dtype_name(c.spec.dtype)));
  }

  absl::Status read_picture(const Column& c, int64_t record, uint64_t epoch, std::span<const std::byte> file,
                            std::span<std::byte> out) const {
    const SampleDraws draws{seed_, epoch, static_cast<uint64_t>(record)};
    PARTITA_ASSIGN_OR_RETURN(const Image image, transform_image(file, images_, c.channels, c.height, c.width, draws));
    std::vector<float> values(image.pixels.size());
    const bool bytes = c.spec.dtype == DType::kU8;
    write_pixels(image, bytes ? kAsTheyAre : images_, c.channels_last, values);
    if (bytes) {
      for (size_t k = 0; k < values.size(); ++k) out[k] = static_cast<std::byte>(std::lround(values[k] * 255));
      return absl::OkStatus();
    }
    c.convert(reinterpret_cast<const std::byte*>(values.data()), out.data(), static_cast<int64_t>(values.size()));
    return absl::OkStatus();
  }

  absl::Status read_integer(const Column& c, int64_t record, std::span<const std::byte> file,
                            std::span<std::byte> out) const {
    const absl::string_view text =
        absl::StripAsciiWhitespace(absl::string_view(reinterpret_cast<const char*>(file.data()), file.size()));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      return absl::InvalidArgumentError(
          cat(".", c.suffix, ": expected an integer, found ", quote(std::string(text), 100)));
    return put(c, record, value, out);
  }

  static absl::Status read_array(const Column& c, const FieldBytes& field, std::span<std::byte> out) {
    PARTITA_ASSIGN_OR_RETURN(const NpyArray array, read_npy(field.bytes, field.owner));
    if (array.shape != c.spec.sample_shape)
      return absl::InvalidArgumentError(cat(".", c.suffix, " has shape ", shape_text(array.shape), ", but graph input ",
                                            quote(c.spec.name), " needs ", shape_text(c.spec.sample_shape)));
    PARTITA_ASSIGN_OR_RETURN(const ConvertFunction convert, find_conversion(array.dtype, c.spec.dtype));
    const int64_t bad = convert(array.bytes.data(), out.data(), sample_elements(c.spec));
    if (bad < 0) return absl::OkStatus();
    return absl::InvalidArgumentError(cat(".", c.suffix, " holds ",
                                          element_text(array.dtype, array.bytes.data() + bad * dtype_size(array.dtype)),
                                          ", which ", dtype_name(c.spec.dtype), " cannot hold"));
  }

  static inline const ImageSettings kAsTheyAre;
  const std::unique_ptr<RecordStore> store_;
  const std::vector<Column> columns_;
  const ImageSettings images_;
  const uint64_t seed_;
  const bool shuffled_;
  const int64_t workers_;
};

// What an input is when `columns` does not say: a picture, the class, or a file of the input's name or kind.
std::string guess_field(const RecordStore& store, const InputSpec& spec) {
  Column picture;
  if (takes_picture(spec, picture)) return std::string(kImage);
  const std::vector<std::string> fields = store.fields(0);
  const auto has = [&](const std::string& suffix) {
    return std::find(fields.begin(), fields.end(), suffix) != fields.end();
  };
  if (is_integer(spec.dtype) && spec.sample_shape.empty()) {
    if (store.folder_class(0)) return std::string(kClass);
    if (has("cls")) return "cls";
  }
  const std::string own = absl::AsciiStrToLower(spec.name);
  for (const std::string& suffix : {own, cat(own, ".npy"), std::string("npy")}) {
    if (has(suffix)) return suffix;
  }
  return "";
}

absl::StatusOr<Column> column_of(const RecordStore& store, const DataConfig& config, const InputSpec& spec) {
  const std::string who = cat(store.describe(), " for graph input ", quote(spec.name));
  if (!spec.batched) return absl::InvalidArgumentError(cat(who, ": it has no batch axis; samples cannot feed it"));
  const auto said = config.columns.find(spec.name);
  const std::string field = said != config.columns.end() ? said->second : guess_field(store, spec);
  Column c{.spec = spec};
  if (field.empty())
    return absl::InvalidArgumentError(cat(who, ": nothing says what it is; its samples have ",
                                          quote_list(store.fields(0)), "; say columns: {", spec.name, ": SUFFIX}"));
  if (field == kImage || is_image_suffix(field)) {
    c.kind = ColumnKind::kImage;
    if (field != kImage) c.suffix = field;
    if (!takes_picture(spec, c))
      return absl::InvalidArgumentError(cat(who, " of ", dtype_name(spec.dtype), " ", shape_text(spec.sample_shape),
                                            ": a picture needs numbers of [3 or 1, height, width]"));
    const size_t stated = std::max(config.images.mean.size(), config.images.std.size());
    if (stated != 0 && stated != static_cast<size_t>(c.channels))
      return absl::InvalidArgumentError(
          cat(who, ": images: mean and std are of ", stated, " channels, the input has ", c.channels));
    if (spec.dtype == DType::kU8) return c;
    PARTITA_ASSIGN_OR_RETURN(c.convert, find_conversion(DType::kF32, spec.dtype));
    return c;
  }
  c.suffix = field;
  const bool scalar = spec.sample_shape.empty();
  if (field == kClass && !store.folder_class(0))
    return absl::InvalidArgumentError(cat(who, ": there are no folders of classes"));
  c.kind = field == kClass                             ? ColumnKind::kFolderClass
           : field == "npy" || field.ends_with(".npy") ? ColumnKind::kArray
                                                       : ColumnKind::kInteger;
  if (c.kind != ColumnKind::kArray) {
    if (!scalar)
      return absl::InvalidArgumentError(
          cat(who, " of ", shape_text(spec.sample_shape), ": .", field, " is one number a sample"));
    PARTITA_ASSIGN_OR_RETURN(c.convert, find_conversion(DType::kI64, spec.dtype));
  }
  return c;
}

// Mean and std are of pixels in [0, 1], which bytes cannot hold: said where all pictures are bytes they would do
// nothing.
absl::Status check_normalization(const RecordStore& store, const ImageSettings& images,
                                 const std::vector<Column>& columns) {
  if (images.mean.empty() && images.std.empty()) return absl::OkStatus();
  const auto picture_of = [&](bool bytes) {
    return std::find_if(columns.begin(), columns.end(), [bytes](const Column& c) {
      return c.kind == ColumnKind::kImage && (c.spec.dtype == DType::kU8) == bytes;
    });
  };
  const auto found = picture_of(true);
  if (found == columns.end() || picture_of(false) != columns.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(cat(
      store.describe(), " for graph input ", quote(found->spec.name),
      ": images: mean and std are of pixels in [0, 1], and this input takes bytes, 0 to 255, as they are; leave mean "
      "and std out and normalize in the model, or export it with an input of floats"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_record_reader(const DataConfig& config,
                                                                 const std::vector<InputSpec>& inputs) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<RecordStore> store,
                           config.kind == DataKind::kImages ? open_image_folder(config.path)
                           : is_sharded(config.path)        ? open_sharded_store(config.path, config.cache)
                                                            : open_tar_store(config.path));
  if (store->records() == 0) return absl::InvalidArgumentError(cat(store->describe(), " holds no sample"));
  std::vector<Column> columns;
  for (const InputSpec& spec : inputs) {
    PARTITA_ASSIGN_OR_RETURN(Column column, column_of(*store, config, spec));
    columns.push_back(std::move(column));
  }
  PARTITA_RETURN_IF_ERROR(check_normalization(*store, config.images, columns));
  return std::make_unique<RecordReader>(std::move(store), std::move(columns), config);
}

}  // namespace partita::runtime
