// NumPy's .npz: a zip archive (stored or deflated, zip64) of .npy arrays.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mapped_file.h"
#include "runtime/files/npy.h"

namespace partita::runtime {

class NpzFile {
 public:
  // Maps the file and checks its directory. No array is touched yet, so one of an unsupported dtype does no harm.
  // Errors (InvalidArgument, NotFound, DataLoss when a checksum is wrong) name the file and the array.
  static absl::StatusOr<NpzFile> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  // Names without ".npy", in archive order.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return index_.find(name) != index_.end(); }
  // Decompresses no more than the header. NotFound lists the names and the nearest.
  absl::StatusOr<NpyHeader> header(std::string_view name) const;
  // The array, CRC checked. A stored one stays in the map; a deflated one is unpacked into memory of exactly the size
  // its header states, which deflate's largest ratio (1032) bounds by the file's size. Thread-safe.
  absl::StatusOr<NpyArray> read(std::string_view name) const;

 private:
  struct Entry {
    std::string name;
    int method = 0;  // 0 stored, 8 deflated
    uint32_t crc = 0;
    std::span<const std::byte> packed;
    uint64_t unpacked_bytes = 0;
  };
  absl::Status read_directory();
  absl::Status add_entry(std::span<const std::byte> record, std::string_view name, std::string_view extra);
  absl::StatusOr<const Entry*> find(std::string_view name) const;
  absl::StatusOr<NpyHeader> entry_header(const Entry& entry) const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

struct NamedArray {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes a stored (uncompressed) archive, atomically; the same arrays give the same bytes (dates are 1980-01-01).
absl::Status write_npz(const std::string& path, const std::vector<NamedArray>& arrays);

}  // namespace partita::runtime
