// The safetensors format (https://github.com/huggingface/safetensors#format): u64 header length, JSON header padded
// with spaces to 8 bytes, then the tensors' bytes, row-major and little-endian, without holes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/mapped_file.h"
#include "runtime/program/sealed_file.h"

namespace partita::runtime {

struct TensorInfo {
  std::string name;  // any UTF-8 but "__metadata__"
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
};

struct SafetensorsEntry : TensorInfo {
  std::string dtype_text;      // as in the file; `dtype` is kInvalid for 8-bit floats and complex numbers
  int64_t begin = 0, end = 0;  // bytes from the start of the file
};

class SafetensorsFile {
 public:
  // Maps the file and checks the whole header: its length (at most 100 MB), JSON, dtypes, shapes, and that the tensors'
  // ranges match their shapes and tile the rest of the file exactly. InvalidArgument names the file and the tensor.
  static absl::StatusOr<SafetensorsFile> open(const std::string& path);
  // A bundle's: read() gives bytes that have been checked alone. DataLoss besides.
  static absl::StatusOr<SafetensorsFile> open(std::shared_ptr<const SealedFile> sealed);

  const std::string& path() const { return sealed_ != nullptr ? sealed_->path() : file_.path(); }
  // In file order.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr when absent.
  const SafetensorsEntry* find(std::string_view name) const;
  // NotFound names the nearest tensor.
  absl::StatusOr<const SafetensorsEntry*> get(std::string_view name) const;
  // The tensor's bytes in the map: valid as long as this object; aligned to the element only if the writer took care.
  // Not of a sealed file.
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;
  // Copies a box, packed row-major, into `out`, whose size must be exact. Thread-safe.
  absl::Status read(std::string_view name, std::span<const int64_t> offset, std::span<const int64_t> extent,
                    std::span<std::byte> out) const;

  // A box of a tensor, to be read.
  struct Box {
    std::string_view name;
    std::vector<int64_t> offset, extent;
  };
  // What has to be checked of a sealed file before these can be read, in the order of the file; of any other nothing.
  // Boxes that read() refuses count for nothing.
  std::vector<CheckAhead::Chunk> chunks_of(std::span<const Box> boxes) const;

 private:
  absl::Status read_header();
  absl::Status check(int64_t begin, int64_t end) const;
  absl::Status copy(std::byte* to, int64_t begin, int64_t end) const;
  std::span<const std::byte> tensor(const SafetensorsEntry& entry) const;
  std::span<const std::byte> bytes() const { return sealed_ != nullptr ? sealed_->bytes() : file_.bytes(); }

  MappedFile file_;
  std::shared_ptr<const SealedFile> sealed_;  // in place of `file_`
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file whose tensors are known first and whose data arrive as boxes, from any thread and in any order. The
// bytes depend only on tensors, metadata and data: tensors lie by falling element size, then name, so all are aligned.
// Several processes may fill one file on a shared file system: one calls create() with a token, the others join() with
// the same arguments, all write and finish(), the creator last (the caller's barrier sees to both orders).
class SafetensorsWriter {
 public:
  // Errors: InvalidArgument (bad or repeated name, dtype or shape), ResourceExhausted (disk full; bytes named).
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata = {},
      const std::string& token = "");
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> join(const std::string& path,
                                                                 std::vector<TensorInfo> tensors,
                                                                 const std::map<std::string, std::string>& metadata,
                                                                 const std::string& token);

  // `data` is the box packed row-major. Thread-safe for boxes that do not overlap, or that overlap with equal data.
  absl::Status write(std::string_view name, std::span<const int64_t> offset, std::span<const int64_t> extent,
                     std::span<const std::byte> data);
  // The whole tensor.
  absl::Status write(std::string_view name, std::span<const std::byte> data);
  // Many boxes at once, by so many threads, which call `got_on` as they do (runtime/files/write_runs.h).
  struct BoxData {
    std::string name;
    std::vector<int64_t> offset, extent;
    std::span<const std::byte> data;
  };
  absl::Status write(std::span<const BoxData> boxes, int threads, const std::function<void()>& got_on = {});
  // Flushes and, for the creator, renames into place. Without a token, FailedPrecondition when fewer bytes were written
  // than some tensor has.
  absl::Status finish();

  int64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    TensorInfo info;
    int64_t begin = 0, bytes = 0;
    std::atomic<int64_t> written = 0;
  };
  SafetensorsWriter(AtomicFile file, bool shared) : file_(std::move(file)), shared_(shared) {}
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> open(const std::string& path,
                                                                 std::vector<TensorInfo> tensors,
                                                                 const std::map<std::string, std::string>& metadata,
                                                                 const std::string& token, bool creator);

  // The slot of a box that `data` fills.
  absl::StatusOr<Slot*> slot_of(std::string_view name, std::span<const int64_t> offset, std::span<const int64_t> extent,
                                std::span<const std::byte> data);

  AtomicFile file_;
  bool shared_;
  int64_t file_bytes_ = 0;
  std::map<std::string, Slot, std::less<>> slots_;
};

// The format's name of a dtype ("F32"); "" for kInvalid.
std::string_view safetensors_dtype(DType dtype);

}  // namespace partita::runtime
