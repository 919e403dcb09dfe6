// Samples that are files of their own, or members of an archive: a record has fields by their suffix, "jpg" or "cls".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita::runtime {

constexpr int64_t kUnlimited = INT64_MAX;  // samples or records: their end is not known

// Bytes of a field, in what `owner` keeps mapped.
struct FieldBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

class RecordStore {
 public:
  virtual ~RecordStore() = default;
  virtual int64_t records() const = 0;  // or kUnlimited
  // Records are shuffled among so many that follow one another; 0: among all.
  virtual int64_t shuffle_window() const { return 0; }
  // What waits for records that are still to come ends soon.
  virtual void give_up() const {}
  virtual std::string describe() const = 0;
  // "'train/cat/1.jpg'"
  virtual std::string locate(int64_t record) const = 0;
  // Suffixes that a record has, in small letters.
  virtual std::vector<std::string> fields(int64_t record) const = 0;
  // The number of the record's folder among the classes; nullopt where there are no such folders.
  virtual std::optional<int64_t> folder_class(int64_t record) const = 0;
  // Names of the classes, by their numbers; empty where there are none.
  virtual std::vector<std::string> classes() const = 0;
  // Thread-safe. NotFound with the fields that the record has; the errors of opening a file.
  virtual absl::StatusOr<FieldBytes> field(int64_t record, std::string_view suffix) const = 0;
};

// Pictures in a folder for each class, as torchvision's ImageFolder: classes are numbered in the order of their names,
// files below them come in the order of their paths. A folder with pictures and no folders has no classes.
// InvalidArgument where there is no picture, or a class has none.
absl::StatusOr<std::unique_ptr<RecordStore>> open_image_folder(const std::string& folder);

// Archives as WebDataset writes them: members whose names are alike up to the first dot of the file's name are a
// record. `path`: a .tar, a folder of them (in the order of their names), or a name with numbers in braces,
// x-{000..127}.tar. Errors: NotFound, InvalidArgument (compressed), DataLoss (damaged, cut short), each with the
// archive's name.
absl::StatusOr<std::unique_ptr<RecordStore>> open_tar_store(const std::string& path);
// Whether a name is that of a compressed archive, which none of these are read from.
bool is_packed_archive(std::string_view name);

}  // namespace partita::runtime
