#include "runtime/files/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

// Zip, as far as NumPy writes it (APPNOTE.TXT 6.3.10): local headers and data, then the central directory, then its end
// record, found from the back. Sizes and offsets of 0xFFFFFFFF stand in the zip64 extra field.

namespace partita::runtime {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kLargestRatio = 1032;  // deflate's best: 258 bytes for two bits

template <typename T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
uint16_t u16(std::span<const std::byte> b, size_t at) { return load<uint16_t>(b, at); }
uint32_t u32(std::span<const std::byte> b, size_t at) { return load<uint32_t>(b, at); }
uint64_t u64(std::span<const std::byte> b, size_t at) { return load<uint64_t>(b, at); }

bool fits(uint64_t at, uint64_t bytes, uint64_t size) { return at <= size && bytes <= size - at; }

absl::Status bad_archive(const std::string& why) { return absl::InvalidArgumentError(why); }

struct Directory {
  uint64_t offset = 0, bytes = 0, entries = 0;
};

absl::StatusOr<Directory> find_directory(std::span<const std::byte> file) {
  if (file.size() < kEndBytes) return bad_archive("is too short for a zip archive");
  const size_t last = file.size() - kEndBytes, first = last > 0xFFFF ? last - 0xFFFF : 0;
  size_t end = last;
  while (u32(file, end) != kEnd || end + kEndBytes + u16(file, end + 20) != file.size()) {
    if (end-- == first) return bad_archive("is not a zip archive, or its end is cut off");
  }
  Directory directory{u32(file, end + 16), u32(file, end + 12), u16(file, end + 10)};
  if (directory.offset == 0xFFFFFFFF || directory.bytes == 0xFFFFFFFF || directory.entries == 0xFFFF) {
    if (end < kLocator64Bytes || u32(file, end - kLocator64Bytes) != kLocator64)
      return bad_archive("lacks its zip64 locator");
    const uint64_t at = u64(file, end - kLocator64Bytes + 8);
    if (!fits(at, kEnd64Bytes, file.size()) || u32(file, at) != kEnd64)
      return bad_archive("has a zip64 record outside the file");
    directory = {u64(file, at + 48), u64(file, at + 40), u64(file, at + 32)};
  }
  if (!fits(directory.offset, directory.bytes, end) || directory.entries > directory.bytes / kCentralBytes) {
    return bad_archive(cat("claims a directory of ", directory.entries, " entries and ", directory.bytes, " bytes at ",
                           directory.offset, ", outside the file"));
  }
  return directory;
}

// Replaces the 32-bit values that are all ones by the 64-bit ones of the zip64 extra field, which come in this order.
absl::Status apply_zip64(std::span<const std::byte> extra, uint64_t& unpacked, uint64_t& packed, uint64_t& offset) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const size_t size = u16(extra, at + 2);
    if (!fits(at + 4, size, extra.size())) break;
    if (u16(extra, at) == 1) {
      size_t field = at + 4;
      for (uint64_t* value : {&unpacked, &packed, &offset}) {
        if (*value != 0xFFFFFFFF) continue;
        if (field + 8 > at + 4 + size) return bad_archive("has a short zip64 field");
        *value = u64(extra, field);
        field += 8;
      }
      return absl::OkStatus();
    }
    at += 4 + size;
  }
  if (unpacked == 0xFFFFFFFF || packed == 0xFFFFFFFF || offset == 0xFFFFFFFF) return bad_archive("lacks a zip64 field");
  return absl::OkStatus();
}

// One deflate stream unpacked piece by piece, so that a header can be looked at before its array is given memory.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> packed) : packed_(packed) {
    started_ = ::inflateInit2(&stream_, -MAX_WBITS) == Z_OK;
  }
  ~Inflater() {
    if (started_) ::inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Bytes unpacked into `out`: all of it, or fewer at the stream's end.
  absl::StatusOr<size_t> read(std::span<std::byte> out) {
    constexpr size_t kPiece = size_t{1} << 30;
    if (!started_) return absl::ResourceExhaustedError("cannot be unpacked: no memory for zlib");
    size_t done = 0;
    while (done < out.size() && !ended_) {
      if (stream_.avail_in == 0 && !packed_.empty()) {
        const size_t piece = std::min(kPiece, packed_.size());
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed_.data()));
        stream_.avail_in = static_cast<uInt>(piece);
        packed_ = packed_.subspan(piece);
      }
      const size_t room = std::min(kPiece, out.size() - done);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int code = ::inflate(&stream_, Z_NO_FLUSH);
      done += room - stream_.avail_out;
      if (code == Z_STREAM_END)
        ended_ = true;
      else if (code == Z_BUF_ERROR && packed_.empty())
        return absl::DataLossError("is damaged: its compressed data end early");
      else if (code != Z_OK && code != Z_BUF_ERROR)
        return absl::DataLossError("is damaged: its compressed data do not unpack");
    }
    return done;
  }

 private:
  z_stream stream_{};
  std::span<const std::byte> packed_;
  bool started_ = false, ended_ = false;
};

uint32_t zip_crc(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace

absl::StatusOr<NpzFile> NpzFile::open(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(path));
  NpzFile npz;
  npz.file_ = std::make_shared<const MappedFile>(std::move(opened));
  if (absl::Status status = npz.read_directory(); !status.ok()) {
    return absl::Status(status.code(), cat("npz file ", quote(path, 1000), " ", status.message()));
  }
  return npz;
}

absl::Status NpzFile::read_directory() {
  PARTITA_ASSIGN_OR_RETURN(const Directory directory, find_directory(file_->bytes()));
  const auto records = file_->bytes().subspan(directory.offset, directory.bytes);
  size_t at = 0;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (!fits(at, kCentralBytes, records.size()) || u32(records, at) != kCentral)
      return bad_archive(cat("has a damaged directory at entry ", i));
    const auto record = records.subspan(at);
    const size_t name_bytes = u16(record, 28), extra_bytes = u16(record, 30), comment_bytes = u16(record, 32);
    if (!fits(kCentralBytes, name_bytes + extra_bytes + comment_bytes, record.size()))
      return bad_archive(cat("has a damaged directory at entry ", i));
    const char* text = reinterpret_cast<const char*>(record.data()) + kCentralBytes;
    const std::string_view name(text, name_bytes);
    PARTITA_RETURN_IF_ERROR(with_context(add_entry(record, name, std::string_view(text + name_bytes, extra_bytes)),
                                         cat("entry ", quote(name))));
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  }
  return absl::OkStatus();
}

absl::Status NpzFile::add_entry(std::span<const std::byte> record, std::string_view name, std::string_view extra) {
  const std::span<const std::byte> file = file_->bytes();
  uint64_t packed = u32(record, 20), unpacked = u32(record, 24), offset = u32(record, 42);
  PARTITA_RETURN_IF_ERROR(apply_zip64(std::as_bytes(std::span(extra)), unpacked, packed, offset));
  if (!name.ends_with(".npy")) return absl::OkStatus();
  name.remove_suffix(4);
  Entry entry{.name = std::string(name), .method = u16(record, 10), .crc = u32(record, 16), .unpacked_bytes = unpacked};
  if ((u16(record, 8) & 1) != 0) return bad_archive("is encrypted");
  if (entry.method != 0 && entry.method != 8)
    return bad_archive(cat("is compressed by method ", entry.method, "; only stored and deflated arrays are read"));
  if (!fits(offset, kLocalBytes, file.size()) || u32(file, offset) != kLocal)
    return bad_archive(cat("has no local header at byte ", offset));
  const uint64_t start = offset + kLocalBytes + u16(file, offset + 26) + u16(file, offset + 28);
  if (!fits(start, packed, file.size()))
    return bad_archive(cat("claims ", packed, " bytes at ", start, " in a file of ", file.size(), " bytes"));
  if (entry.method == 0 ? unpacked != packed : unpacked / kLargestRatio > packed) {
    return bad_archive(cat("claims ", unpacked, " bytes from ", packed, " packed ones"));
  }
  entry.packed = file.subspan(start, packed);
  if (!index_.emplace(entry.name, entries_.size()).second) return bad_archive("is in the archive twice");
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

std::vector<std::string> NpzFile::names() const {
  std::vector<std::string> out;
  for (const Entry& entry : entries_) out.push_back(entry.name);
  return out;
}

absl::StatusOr<const NpzFile::Entry*> NpzFile::find(std::string_view name) const {
  if (auto it = index_.find(name); it != index_.end()) return &entries_[it->second];
  const std::string near = nearest_name(name, names());
  return absl::NotFoundError(cat("npz file ", quote(path(), 1000), " has no array ", quote(name),
                                 near.empty() ? "" : cat("; the nearest name is ", quote(near)), "; it holds ",
                                 quote_list(names())));
}

absl::StatusOr<NpyHeader> NpzFile::entry_header(const Entry& entry) const {
  std::vector<std::byte> unpacked;
  std::span<const std::byte> start = entry.packed;
  if (entry.method == 8) {
    unpacked.resize(std::min<uint64_t>(entry.unpacked_bytes, 12));
    PARTITA_ASSIGN_OR_RETURN(size_t size, Inflater(entry.packed).read(unpacked));
    PARTITA_ASSIGN_OR_RETURN(const int64_t length, npy_header_bytes(std::span(unpacked).first(size)));
    unpacked.resize(std::min<uint64_t>(entry.unpacked_bytes, static_cast<uint64_t>(length)));
    PARTITA_ASSIGN_OR_RETURN(size, Inflater(entry.packed).read(unpacked));
    start = std::span(unpacked).first(size);
  }
  PARTITA_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header(start));
  if (header.dtype != DType::kInvalid &&
      static_cast<uint64_t>(header.data_offset) + static_cast<uint64_t>(header.data_bytes) != entry.unpacked_bytes) {
    return absl::InvalidArgumentError(cat("of ", dtype_name(header.dtype), " ", shape_text(header.shape), " needs ",
                                          header.data_bytes, " bytes of data, but the archive has ",
                                          static_cast<int64_t>(entry.unpacked_bytes) - header.data_offset));
  }
  return header;
}

absl::StatusOr<NpyHeader> NpzFile::header(std::string_view name) const {
  PARTITA_ASSIGN_OR_RETURN(const Entry* entry, find(name));
  absl::StatusOr<NpyHeader> header = entry_header(*entry);
  if (header.ok()) return header;
  return absl::Status(header.status().code(),
                      cat("array ", quote(name), " of ", quote(path(), 1000), " ", header.status().message()));
}

absl::StatusOr<NpyArray> NpzFile::read(std::string_view name) const {
  PARTITA_ASSIGN_OR_RETURN(const NpyHeader header, this->header(name));
  PARTITA_ASSIGN_OR_RETURN(const Entry* entry, find(name));
  auto bad = [&](const absl::Status& status) {
    return absl::Status(status.code(), cat("array ", quote(name), " of ", quote(path(), 1000), " ", status.message()));
  };
  if (absl::Status status = check_npy_dtype(header); !status.ok()) return bad(status);
  std::shared_ptr<const void> owner = file_;
  std::span<const std::byte> bytes = entry->packed;
  if (entry->method == 8) {
    // Not cleared: a false claim then costs address space, and memory only for what the stream really holds.
    const size_t claimed = static_cast<size_t>(entry->unpacked_bytes);
    std::shared_ptr<std::byte[]> storage(new (std::nothrow) std::byte[claimed]);
    if (storage == nullptr) return bad(absl::ResourceExhaustedError(cat("needs ", claimed, " bytes of memory")));
    absl::StatusOr<size_t> size = Inflater(entry->packed).read({storage.get(), claimed});
    if (!size.ok()) return bad(size.status());
    if (*size != claimed) return bad(absl::DataLossError(cat("unpacks to ", *size, " bytes instead of ", claimed)));
    bytes = {storage.get(), claimed};
    owner = std::move(storage);
  }
  if (zip_crc(bytes) != entry->crc) return bad(absl::DataLossError("is damaged: its CRC-32 does not match"));
  const auto data = bytes.subspan(static_cast<size_t>(header.data_offset));
  if (header.fortran_order && header.shape.size() > 1) return from_fortran_order(header.dtype, header.shape, data);
  return NpyArray{header.dtype, header.shape, data, owner};
}

}  // namespace partita::runtime
