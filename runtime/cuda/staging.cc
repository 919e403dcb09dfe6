#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/files/in_parallel.h"

namespace partita::runtime {
namespace {

constexpr size_t kLargeBytes = 32 << 20;

absl::Status make(Staging::Piece& piece, size_t bytes) {
  void* made = nullptr;
  if (cudaError_t e = cudaMallocHost(&made, bytes); e != cudaSuccess) return cuda_error("cudaMallocHost", e);
  piece.memory = static_cast<std::byte*>(made);
  if (cudaError_t e = cudaEventCreateWithFlags(&piece.left, cudaEventDisableTiming); e != cudaSuccess)
    return cuda_error("cudaEventCreate", e);
  return absl::OkStatus();
}

absl::Status wait_for(const Staging::Piece& piece) {
  const cudaError_t e = cudaEventSynchronize(piece.left);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("the GPU", e);
}

}  // namespace

absl::Status Staging::open() {
  for (Piece& piece : pieces_) PARTITA_RETURN_IF_ERROR(make(piece, kBytes));
  return absl::OkStatus();
}

void Staging::close() {
  const auto free = [](const Piece& piece) {
    if (piece.memory != nullptr) cudaFreeHost(piece.memory);
    if (piece.left != nullptr) cudaEventDestroy(piece.left);
  };
  std::for_each(pieces_.begin(), pieces_.end(), free);
  std::for_each(large_.begin(), large_.end(), free);
}

absl::StatusOr<Staging::Piece*> Staging::next() {
  Piece& piece = pieces_[next_++ % pieces_.size()];
  PARTITA_RETURN_IF_ERROR(wait_for(piece));
  return &piece;
}

absl::StatusOr<Staging::Piece*> Staging::next_large() {
  Piece& piece = large_[next_large_++ % large_.size()];
  if (piece.memory == nullptr) PARTITA_RETURN_IF_ERROR(make(piece, kLargeBytes));
  PARTITA_RETURN_IF_ERROR(wait_for(piece));
  return &piece;
}

absl::Status Staging::write(std::byte* to, std::span<const std::byte> from, cudaStream_t stream) {
  static const int kThreads = batch_threads();
  const bool large = from.size() > pieces_.size() * kBytes;
  const size_t size = large ? kLargeBytes : kBytes;
  for (size_t at = 0; at < from.size(); at += size) {
    const size_t bytes = std::min(size, from.size() - at);
    PARTITA_ASSIGN_OR_RETURN(Piece * piece, large ? next_large() : next());
    in_parallel(large ? kThreads : 1, (bytes + kBytes - 1) / kBytes, [&](size_t k) {
      const size_t first = k * kBytes;
      std::memcpy(piece->memory + first, from.data() + at + first, std::min(kBytes, bytes - first));
    });
    cudaError_t e = cudaMemcpyAsync(to + at, piece->memory, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaEventRecord(piece->left, stream);
    if (e != cudaSuccess) return cuda_error("cudaMemcpy", e);
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
