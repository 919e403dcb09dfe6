#include "runtime/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/files/safetensors_header.h"
#include "runtime/files/write_runs.h"

namespace partita::runtime {
namespace {

// What is copied at once and let go afterwards: a system call costs less than a hundredth of the copy.
constexpr int64_t kLargePiece = 256 << 10;

absl::Status bad_file(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(cat("safetensors file ", quote(path, 1000), ": ", why));
}

// The ranges must tile [0, size) exactly: no hole, no overlap, nothing after. Sorts entries into file order.
absl::Status check_tiling(std::vector<SafetensorsEntry>& entries, int64_t size) {
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != at) {
      return absl::InvalidArgumentError(cat("tensor ", quote(e.name), " starts at data byte ", e.begin, ", expected ",
                                            at,
                                            e.begin < at ? " (it overlaps the tensor before)" : " (a hole before it)"));
    }
    if (e.end > size) {
      return absl::InvalidArgumentError(cat("tensor ", quote(e.name), " ends at data byte ", e.end, ", but only ", size,
                                            " bytes of data are in the file; it is cut short or damaged"));
    }
    at = e.end;
  }
  if (at == size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat("tensors end at data byte ", at, ", but the file holds ", size, " bytes of data"));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  PARTITA_ASSIGN_OR_RETURN(file.file_, MappedFile::open(path));
  PARTITA_RETURN_IF_ERROR(file.read_header());
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(std::shared_ptr<const SealedFile> sealed) {
  SafetensorsFile file;
  file.sealed_ = std::move(sealed);
  PARTITA_RETURN_IF_ERROR(file.read_header());
  return file;
}

absl::Status SafetensorsFile::check(int64_t begin, int64_t end) const {
  return sealed_ != nullptr ? sealed_->check(begin, end) : absl::OkStatus();
}

absl::Status SafetensorsFile::read_header() {
  const std::span<const std::byte> bytes = this->bytes();
  if (bytes.size() < 8) return bad_file(path(), cat("is ", bytes.size(), " bytes long, too short for a header"));
  PARTITA_RETURN_IF_ERROR(check(0, 8));
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kLongestHeader || length > bytes.size() - 8) {
    return bad_file(path(), cat("claims a header of ", length, " bytes in a file of ", bytes.size(),
                                " bytes; not a safetensors file, or cut short"));
  }
  PARTITA_RETURN_IF_ERROR(check(8, static_cast<int64_t>(8 + length)));
  absl::StatusOr<SafetensorsHeader> header = parse_safetensors_header(as_text(bytes.subspan(8, length)));
  if (!header.ok()) return bad_file(path(), std::string(header.status().message()));
  const int64_t start = 8 + static_cast<int64_t>(length);
  if (absl::Status status = check_tiling(header->entries, static_cast<int64_t>(bytes.size()) - start); !status.ok())
    return bad_file(path(), std::string(status.message()));
  entries_ = std::move(header->entries);
  metadata_ = std::move(header->metadata);
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].begin += start;
    entries_[i].end += start;
    index_[entries_[i].name] = i;
  }
  return absl::OkStatus();
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::get(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return entry;
  std::vector<std::string> names;
  for (const SafetensorsEntry& e : entries_) names.push_back(e.name);
  const std::string near = nearest_name(name, names);
  return absl::NotFoundError(cat("safetensors file ", quote(path(), 1000), " has no tensor ", quote(name),
                                 near.empty() ? "" : cat("; the nearest name is ", quote(near)), "; it holds ",
                                 quote_list(names)));
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  PARTITA_CHECK(sealed_ == nullptr, "a sealed file's bytes are read through its check");
  return tensor(entry);
}

std::span<const std::byte> SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  return bytes().subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
}

absl::Status SafetensorsFile::read(std::string_view name, std::span<const int64_t> offset,
                                   std::span<const int64_t> extent, std::span<std::byte> out) const {
  PARTITA_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, get(name));
  if (entry->dtype == DType::kInvalid) {
    return absl::UnimplementedError(cat("tensor ", quote(name), " of ", quote(path(), 1000), " has dtype ",
                                        entry->dtype_text, ", which is not supported"));
  }
  PARTITA_RETURN_IF_ERROR(with_context(check_box(entry->shape, offset, extent), cat("tensor ", quote(name))));
  const int64_t size = dtype_size(entry->dtype);
  if (static_cast<int64_t>(out.size()) != *element_count(extent) * size) {
    return absl::InvalidArgumentError(cat("tensor ", quote(name), ": box ", shape_text(extent), " of ",
                                          entry->dtype_text, " does not fill a buffer of ", out.size(), " bytes"));
  }
  return for_each_run(entry->shape, offset, extent, [&](int64_t at, int64_t packed, int64_t count) {
    return copy(out.data() + packed * size, entry->begin + at * size, entry->begin + (at + count) * size);
  });
}

// Of a sealed file chunk by chunk, each while its hash has left it in the cache.
absl::Status SafetensorsFile::copy(std::byte* to, int64_t begin, int64_t end) const {
  while (begin < end) {
    const int64_t stop =
        sealed_ != nullptr ? std::min(end, (begin / sealed_->chunk_bytes() + 1) * sealed_->chunk_bytes()) : end;
    PARTITA_RETURN_IF_ERROR(check(begin, stop));
    const auto piece = bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(stop - begin));
    to = std::copy(piece.begin(), piece.end(), to);
    if (stop - begin >= kLargePiece) MappedFile::let_go(piece);
    begin = stop;
  }
  return absl::OkStatus();
}

std::vector<CheckAhead::Chunk> SafetensorsFile::chunks_of(std::span<const Box> boxes) const {
  std::vector<CheckAhead::Chunk> chunks;
  if (sealed_ == nullptr) return chunks;
  std::vector<bool> wanted(sealed_->chunks());
  for (const Box& box : boxes) {
    const SafetensorsEntry* entry = find(box.name);
    if (entry == nullptr || !check_box(entry->shape, box.offset, box.extent).ok()) continue;
    const int64_t size = std::max<int64_t>(1, dtype_size(entry->dtype));
    (void)for_each_run(entry->shape, box.offset, box.extent, [&](int64_t at, int64_t, int64_t count) {
      const auto [first, last] = sealed_->chunks_of(entry->begin + at * size, entry->begin + (at + count) * size);
      std::fill(wanted.begin() + static_cast<int64_t>(first), wanted.begin() + static_cast<int64_t>(last), true);
      return absl::OkStatus();
    });
  }
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (wanted[k]) chunks.push_back({sealed_.get(), k});
  }
  return chunks;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata,
    const std::string& token) {
  return open(path, std::move(tensors), metadata, token, true);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::join(
    const std::string& path, std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata,
    const std::string& token) {
  return open(path, std::move(tensors), metadata, token, false);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::open(
    const std::string& path, std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata,
    const std::string& token, bool creator) {
  const absl::StatusOr<SafetensorsLayout> laid_out = lay_out_safetensors(std::move(tensors), metadata);
  if (!laid_out.ok()) return bad_file(path, std::string(laid_out.status().message()));
  const SafetensorsLayout& layout = *laid_out;
  PARTITA_ASSIGN_OR_RETURN(AtomicFile opened,
                           creator ? AtomicFile::create(path, token) : AtomicFile::join(path, token));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(std::move(opened), !token.empty()));
  writer->file_bytes_ = layout.bytes;
  for (const SafetensorsEntry& e : layout.entries) {
    auto [it, fresh] = writer->slots_.try_emplace(e.name);
    if (!fresh) return bad_file(path, cat("tensor ", quote(e.name), " is listed twice"));
    it->second.info = e;
    it->second.begin = e.begin;
    it->second.bytes = e.end - e.begin;
  }
  if (creator) {
    PARTITA_RETURN_IF_ERROR(writer->file_.reserve(writer->file_bytes_));
    PARTITA_RETURN_IF_ERROR(writer->file_.append(layout.front));
  }
  return writer;
}

absl::StatusOr<SafetensorsWriter::Slot*> SafetensorsWriter::slot_of(std::string_view name,
                                                                    std::span<const int64_t> offset,
                                                                    std::span<const int64_t> extent,
                                                                    std::span<const std::byte> data) {
  auto it = slots_.find(name);
  if (it == slots_.end())
    return absl::NotFoundError(cat("safetensors file ", quote(file_.path(), 1000), " has no tensor ", quote(name)));
  Slot& slot = it->second;
  PARTITA_RETURN_IF_ERROR(with_context(check_box(slot.info.shape, offset, extent), cat("tensor ", quote(name))));
  if (static_cast<int64_t>(data.size()) != *element_count(extent) * dtype_size(slot.info.dtype)) {
    return absl::InvalidArgumentError(cat("tensor ", quote(name), ": box ", shape_text(extent), " of ",
                                          dtype_name(slot.info.dtype), " was given ", data.size(), " bytes"));
  }
  return &slot;
}

absl::Status SafetensorsWriter::write(std::string_view name, std::span<const int64_t> offset,
                                      std::span<const int64_t> extent, std::span<const std::byte> data) {
  const BoxData box{std::string(name), {offset.begin(), offset.end()}, {extent.begin(), extent.end()}, data};
  return write({&box, 1}, 1);
}

absl::Status SafetensorsWriter::write(std::span<const BoxData> boxes, int threads,
                                      const std::function<void()>& got_on) {
  std::vector<FileRun> runs;
  for (const BoxData& box : boxes) {
    PARTITA_ASSIGN_OR_RETURN(const Slot* slot, slot_of(box.name, box.offset, box.extent, box.data));
    const int64_t size = dtype_size(slot->info.dtype);
    PARTITA_RETURN_IF_ERROR(
        for_each_run(slot->info.shape, box.offset, box.extent, [&](int64_t at, int64_t packed, int64_t count) {
          runs.push_back({slot->begin + at * size,
                          box.data.subspan(static_cast<size_t>(packed * size), static_cast<size_t>(count * size))});
          return absl::OkStatus();
        }));
  }
  PARTITA_RETURN_IF_ERROR(write_runs(file_, std::move(runs), threads, got_on));
  for (const BoxData& box : boxes) slots_.find(box.name)->second.written += static_cast<int64_t>(box.data.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  auto it = slots_.find(name);
  const std::vector<int64_t> shape = it == slots_.end() ? std::vector<int64_t>() : it->second.info.shape;
  return write(name, std::vector<int64_t>(shape.size(), 0), shape, data);
}

absl::Status SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    if (!shared_ && slot.written < slot.bytes) {
      return absl::FailedPreconditionError(cat("safetensors file ", quote(file_.path(), 1000), ": tensor ", quote(name),
                                               " got ", slot.written.load(), " of its ", slot.bytes,
                                               " bytes; the file was not written"));
    }
  }
  return file_.commit();
}

}  // namespace partita::runtime
