#include <zlib.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/files/npz.h"

namespace partita::runtime {
namespace {

constexpr uint64_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kDate1980 = 0x21;  // 1980-01-01

// Little-endian fields one after another.
class Fields {
 public:
  template <typename T>
  Fields& add(T value) {
    for (size_t i = 0; i < sizeof value; ++i) out_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
    return *this;
  }
  Fields& text(std::string_view text) {
    out_ += text;
    return *this;
  }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

struct Record {
  std::string name;
  uint32_t crc;
  uint64_t bytes, offset;
};

uint32_t crc_of(uint32_t crc, std::span<const std::byte> bytes) {
  if (bytes.empty()) return crc;  // zlib takes a null pointer as "start anew"
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Flag 0x800: the name is UTF-8. Version 45 = zip64.
std::string local_header(const Record& r) {
  const bool big = r.bytes >= kMax32;
  const uint32_t bytes = static_cast<uint32_t>(std::min(r.bytes, kMax32));
  Fields f;
  f.add(uint32_t{0x04034b50})
      .add(uint16_t(big ? 45 : 20))
      .add(uint16_t{0x800})
      .add(uint16_t{0})
      .add(uint16_t{0})
      .add(kDate1980);
  f.add(r.crc).add(bytes).add(bytes).add(static_cast<uint16_t>(r.name.size())).add(uint16_t(big ? 20 : 0)).text(r.name);
  if (big) f.add(uint16_t{1}).add(uint16_t{16}).add(r.bytes).add(r.bytes);
  return f.str();
}

std::string central_header(const Record& r) {
  const bool big = r.bytes >= kMax32, far = r.offset >= kMax32;
  const uint16_t extra = (big ? 16 : 0) + (far ? 8 : 0);
  const uint32_t bytes = static_cast<uint32_t>(std::min(r.bytes, kMax32));
  Fields f;
  f.add(uint32_t{0x02014b50})
      .add(uint16_t(0x0300 | 45))
      .add(uint16_t(big || far ? 45 : 20))
      .add(uint16_t{0x800})
      .add(uint16_t{0})
      .add(uint16_t{0})
      .add(kDate1980);
  f.add(r.crc)
      .add(bytes)
      .add(bytes)
      .add(static_cast<uint16_t>(r.name.size()))
      .add(uint16_t(extra ? extra + 4 : 0))
      .add(uint16_t{0})
      .add(uint16_t{0});
  f.add(uint16_t{0}).add(uint32_t{0100644u << 16}).add(static_cast<uint32_t>(std::min(r.offset, kMax32))).text(r.name);
  if (extra) f.add(uint16_t{1}).add(extra);
  if (big) f.add(r.bytes).add(r.bytes);
  if (far) f.add(r.offset);
  return f.str();
}

std::string end_records(uint64_t entries, uint64_t offset, uint64_t bytes) {
  Fields f;
  if (entries >= 0xFFFF || offset >= kMax32 || bytes >= kMax32) {
    f.add(uint32_t{0x06064b50}).add(uint64_t{44}).add(uint16_t{45}).add(uint16_t{45}).add(uint32_t{0}).add(uint32_t{0});
    f.add(entries).add(entries).add(bytes).add(offset);
    f.add(uint32_t{0x07064b50}).add(uint32_t{0}).add(offset + bytes).add(uint32_t{1});
  }
  const uint16_t count = static_cast<uint16_t>(std::min<uint64_t>(entries, 0xFFFF));
  f.add(uint32_t{0x06054b50}).add(uint16_t{0}).add(uint16_t{0}).add(count).add(count);
  f.add(static_cast<uint32_t>(std::min(bytes, kMax32)))
      .add(static_cast<uint32_t>(std::min(offset, kMax32)))
      .add(uint16_t{0});
  return f.str();
}

}  // namespace

absl::Status write_npz(const std::string& path, const std::vector<NamedArray>& arrays) {
  PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  std::vector<Record> records;
  uint64_t at = 0;
  auto put = [&](std::span<const std::byte> bytes) {
    at += bytes.size();
    return file.append(bytes);
  };
  for (const NamedArray& array : arrays) {
    const std::string who = cat("npz file ", quote(path, 1000), ": array ", quote(array.name));
    absl::StatusOr<std::string> header = format_npy_header(array.dtype, array.shape);
    PARTITA_RETURN_IF_ERROR(with_context(header.status(), who));
    const std::optional<int64_t> count = element_count(array.shape);
    if (!count || *count > INT64_MAX / 8 ||
        *count * dtype_size(array.dtype) != static_cast<int64_t>(array.bytes.size())) {
      return absl::InvalidArgumentError(cat(who, " of ", dtype_name(array.dtype), " ", shape_text(array.shape),
                                            " was given ", array.bytes.size(), " bytes"));
    }
    if (!is_utf8(array.name) || array.name.size() > 60000)
      return absl::InvalidArgumentError(cat(who, " has a name that zip cannot hold"));
    const uint32_t crc = crc_of(crc_of(0, as_byte_span(*header)), array.bytes);
    records.push_back({array.name + ".npy", crc, header->size() + array.bytes.size(), at});
    PARTITA_RETURN_IF_ERROR(put(as_byte_span(local_header(records.back()))));
    PARTITA_RETURN_IF_ERROR(put(as_byte_span(*header)));
    PARTITA_RETURN_IF_ERROR(put(array.bytes));
  }
  const uint64_t directory = at;
  for (const Record& record : records) PARTITA_RETURN_IF_ERROR(put(as_byte_span(central_header(record))));
  PARTITA_RETURN_IF_ERROR(put(as_byte_span(end_records(records.size(), directory, at - directory))));
  return file.commit();
}

}  // namespace partita::runtime
