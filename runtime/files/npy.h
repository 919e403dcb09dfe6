// NumPy's .npy format (numpy.lib.format, versions 1 to 3), apart from any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace partita::runtime {

struct NpyHeader {
  DType dtype = DType::kInvalid;  // kInvalid: not one of ours (strings, records, big-endian, complex, …)
  std::string descr;              // as in the file
  bool fortran_order = false;
  std::vector<int64_t> shape;
  int64_t data_offset = 0;  // bytes of magic and header before the data
  int64_t data_bytes = 0;   // 0 for kInvalid
};

// The header's length from the first 12 bytes (or fewer, if the array is shorter): at most 1 MiB.
absl::StatusOr<int64_t> npy_header_bytes(std::span<const std::byte> start);
// `start` holds at least npy_header_bytes(). Errors are InvalidArgument and do not name the file.
absl::StatusOr<NpyHeader> parse_npy_header(std::span<const std::byte> start);
// Why `header` cannot be read as numbers; OK when dtype is set.
absl::Status check_npy_dtype(const NpyHeader& header);
// Magic and header, padded to a multiple of 64 bytes. InvalidArgument for bf16, which NumPy does not know.
absl::StatusOr<std::string> format_npy_header(DType dtype, std::span<const int64_t> shape);

// An array in memory, row-major: bytes are owned, or lie in a file that `owner` keeps mapped. Cheap to copy.
struct NpyArray {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// The array that a .npy file's bytes hold; `owner` keeps them. InvalidArgument, without a name, as open_npy's.
absl::StatusOr<NpyArray> read_npy(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
// Maps a .npy file (a Fortran-ordered one is converted in memory). InvalidArgument when damaged, cut short or of a
// dtype that is not supported; each error names the file.
absl::StatusOr<NpyArray> open_npy(const std::string& path);
absl::Status write_npy(const std::string& path, DType dtype, std::span<const int64_t> shape,
                       std::span<const std::byte> data);

// The column-major bytes of an array of `shape` as an owned row-major array.
NpyArray from_fortran_order(DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes);

}  // namespace partita::runtime
