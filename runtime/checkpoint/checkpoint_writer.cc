#include "runtime/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/fault.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/work_together.h"
#include "runtime/files/in_parallel.h"
#include "runtime/files/safetensors_header.h"
#include "runtime/files/tensor_checksum.h"
#include "runtime/files/write_runs.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kToken = "ranks";
// A disk wants several writes at once; checksums have to keep up with it.
constexpr int kWriters = 4, kSummers = 2, kCopiers = 4;
constexpr size_t kCopied = 8 << 20;  // bytes at once

std::map<std::string, std::string> metadata_of(const CheckpointManifest& m) {
  return {{"format", "pt"}, {"partita_step", cat(m.step)}};
}

// Best effort: some file systems refuse to sync a folder.
void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string partial_path(const std::string& folder, int64_t step) {
  return cat(folder, "/.", checkpoint_name(step), ".partial");
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, bool shared, Communicator* communicator, RegionMemory& copy,
                                   FlightRecorder* recorder)
    : folder_(std::move(folder)),
      shared_(shared),
      communicator_(communicator),
      buffer_(copy),
      got_on_([recorder] {
        if (recorder != nullptr) recorder->progress();
      }),
      recorder_(recorder) {}

void CheckpointWriter::start(absl::Status (CheckpointWriter::*work)()) {
  work_ = std::async(std::launch::async, [this, work]() -> absl::Status {
            try {
              return (this->*work)();
            } catch (...) {
              return with_context(status_of_exception(), "writing the checkpoint");
            }
          }).share();
}

std::string CheckpointWriter::partial() const { return partial_path(folder_, manifest_.step); }

absl::Status CheckpointWriter::create() {
  std::error_code error;
  const std::string path = partial();
  if (is_first()) fs::remove_all(path, error);
  fs::create_directories(path, error);
  if (error) return file_error("make the folder", path, error.value());
  if (!shared_) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(
      file_, SafetensorsWriter::create(cat(path, "/", kCheckpointStates), infos(), metadata_of(manifest_), kToken));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::begin(CheckpointManifest manifest, const std::vector<HeldState>& states,
                                     std::span<const int64_t> coordinates) {
  manifest_ = std::move(manifest);
  begun_ = std::chrono::steady_clock::now();
  const absl::Status begun = work_together(communicator_, "starting a checkpoint", recorder_, [&]() -> absl::Status {
    if (is_first() || !shared_) PARTITA_RETURN_IF_ERROR(create());
    return with_context(copy_states(states, coordinates), "copying the states");
  });
  if (!begun.ok()) {
    discard();
    return begun;
  }
  start(&CheckpointWriter::write_pieces);
  return absl::OkStatus();
}

absl::Status CheckpointWriter::copy_states(const std::vector<HeldState>& states, std::span<const int64_t> coordinates) {
  pieces_.clear();
  owned_.assign(manifest_.tensors.size(), false);
  std::vector<std::pair<const HeldState*, LogicalPiece>> held;  // of each piece
  // With files of their own the ranks write all that they hold, so that each can load its part again alone.
  for (const HeldState& s : states) {
    if (s.owned) owned_[s.tensor] = true;
    if (!s.owned && (shared_ || owned_only_)) continue;
    const absl::Status walked = for_each_piece(*s.placement, coordinates, [&](const LogicalPiece& piece) {
      const auto bytes =
          static_cast<size_t>(*element_count(piece.extent) * dtype_size(manifest_.tensors[s.tensor].dtype));
      pieces_.push_back({s.tensor, piece.offset, piece.extent, 0, bytes});
      held.emplace_back(&s, piece);
      return absl::OkStatus();
    });
    PARTITA_CHECK(walked.ok(), "pieces of a checked placement");
  }
  PARTITA_RETURN_IF_ERROR(place_pieces());
  // Training waits for this.
  std::vector<std::function<void()>> copies;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const auto& [state, piece] = held[p];
    const int64_t element = dtype_size(manifest_.tensors[state->tensor].dtype);
    std::byte* to = buffer_.data() + pieces_[p].at;
    if (!is_dense(piece)) {
      copies.push_back([&piece, element, from = state->memory.data(), to] { pack_piece(piece, element, from, to); });
      continue;
    }
    const std::byte* from = state->memory.data() + piece.packed_offset * element;
    const size_t size = pieces_[p].bytes;
    for (size_t k = 0; k < size; k += kCopied)
      copies.push_back([=] { std::memcpy(to + k, from + k, std::min(kCopied, size - k)); });
  }
  in_parallel(kCopiers, copies.size(), [&](size_t k) {
    copies[k]();
    got_on_();
  });
  return absl::OkStatus();
}

// What this rank's file holds, or the file of all.
std::vector<TensorInfo> CheckpointWriter::infos() const {
  std::vector<TensorInfo> infos;
  if (shared_) {
    for (const CheckpointTensor& t : manifest_.tensors) infos.push_back({t.name, t.dtype, t.shape});
    return infos;
  }
  for (const Piece& p : pieces_)
    infos.push_back({box_key(manifest_.tensors[p.tensor].name, p.offset), manifest_.tensors[p.tensor].dtype, p.extent});
  return infos;
}

// Where they go in the copy: so that a piece is written from there (kWrittenPage), if it is one run of the file.
absl::Status CheckpointWriter::place_pieces() {
  PARTITA_ASSIGN_OR_RETURN(const SafetensorsLayout layout, lay_out_safetensors(infos(), metadata_of(manifest_)));
  std::map<std::string_view, int64_t> begins;
  for (const SafetensorsEntry& e : layout.entries) begins[e.name] = e.begin;
  constexpr auto kPage = static_cast<size_t>(kWrittenPage);
  size_t end = 0;
  for (Piece& p : pieces_) {
    const CheckpointTensor& t = manifest_.tensors[p.tensor];
    int64_t first = 0;  // element of what the file has under the name
    for (size_t d = 0; shared_ && d < t.shape.size(); ++d) first = first * t.shape[d] + p.offset[d];
    const int64_t in_file = begins.at(shared_ ? t.name : box_key(t.name, p.offset)) + first * dtype_size(t.dtype);
    p.at = end + (static_cast<size_t>(in_file) - end) % kPage;
    end = p.at + p.bytes;
  }
  if (buffer_.bytes() >= static_cast<int64_t>(end)) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(buffer_, RegionMemory::allocate(static_cast<int64_t>(end)));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::open_file() {
  const std::string folder = partial();
  if (!shared_) {
    const int rank = communicator_ == nullptr ? 0 : communicator_->rank();
    PARTITA_ASSIGN_OR_RETURN(
        file_, SafetensorsWriter::create(cat(folder, "/", box_file(rank)), infos(), metadata_of(manifest_)));
  } else if (!is_first()) {
    PARTITA_ASSIGN_OR_RETURN(
        file_, SafetensorsWriter::join(cat(folder, "/", kCheckpointStates), infos(), metadata_of(manifest_), kToken));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::write_pieces() {
  PARTITA_RETURN_IF_ERROR(open_file());
  std::vector<SafetensorsWriter::BoxData> boxes;
  std::vector<ChecksumBox> summed;
  std::vector<size_t> tensors;  // of `summed`
  for (const Piece& p : pieces_) {
    const CheckpointTensor& t = manifest_.tensors[p.tensor];
    const std::span<const std::byte> data(buffer_.data() + p.at, p.bytes);
    boxes.push_back(shared_ ? SafetensorsWriter::BoxData{t.name, p.offset, p.extent, data}
                            : SafetensorsWriter::BoxData{box_key(t.name, p.offset),
                                                         std::vector<int64_t>(p.extent.size(), 0), p.extent, data});
    if (!owned_[p.tensor]) continue;
    summed.push_back({t.shape, p.offset, p.extent, dtype_size(t.dtype), data});
    tensors.push_back(p.tensor);
  }
  std::vector<uint64_t> words;
  std::thread summing([&] { words = box_checksums(summed, kSummers, got_on_); });
  const absl::Status written = file_->write(boxes, kWriters, got_on_);
  summing.join();
  PARTITA_RETURN_IF_ERROR(written);
  std::vector<uint64_t> sums(manifest_.tensors.size(), 0);
  for (size_t k = 0; k < words.size(); ++k) sums[tensors[k]] += words[k];
  sums_.assign(sums.begin(), sums.end());
  // In a shared file the first rank comes last: it renames.
  return shared_ && is_first() ? absl::OkStatus() : file_->finish();
}

absl::Status CheckpointWriter::commit() {
  // One of the same step: damaged, or of a run that was taken up again further back.
  if (is_first() || !shared_) remove_checkpoint(folder_, manifest_.step);
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, sums_, ReduceOp::kSum, "checkpoint: checksums"));
  for (size_t k = 0; k < sums_.size(); ++k) manifest_.tensors[k].checksum = static_cast<uint64_t>(sums_[k]);
  if (shared_ && !is_first()) return absl::OkStatus();
  start(&CheckpointWriter::publish);
  return absl::OkStatus();
}

absl::Status CheckpointWriter::publish() {
  const std::string from = partial(), to = cat(folder_, "/", checkpoint_name(manifest_.step));
  if (shared_) PARTITA_RETURN_IF_ERROR(file_->finish());
  // With files of their own every rank writes the same manifest: whichever is last on a host leaves it as it was.
  const absl::Status written = write_file_atomically(cat(from, "/", kCheckpointManifest), format_manifest(manifest_));
  std::error_code error, ignored;
  if (!written.ok() && (shared_ || !fs::exists(cat(to, "/", kCheckpointManifest), ignored))) return written;
  fs::rename(from, to, error);
  if (error && !fs::exists(cat(to, "/", kCheckpointManifest), ignored))
    return file_error("rename the finished checkpoint to", to, error.value());
  sync_folder(folder_);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  return absl::OkStatus();
}

void CheckpointWriter::discard() {
  status().IgnoreError();
  file_.reset();
  std::error_code ignored;
  if (is_first() || !shared_) fs::remove_all(partial(), ignored);
}

}  // namespace partita::runtime
