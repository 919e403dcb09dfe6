// Page-locked memory that what the host reads and writes goes through, a piece at a time: the GPU copies from it and to
// it beside the host.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita::runtime {

class Staging {
 public:
  static constexpr size_t kBytes = 1 << 20;  // of a piece
  struct Piece {
    std::byte* memory = nullptr;
    cudaEvent_t left = nullptr;  // what was last written into it
  };

  absl::Status open();
  void close();  // nothing is under way any more

  // Queues copies to memory of the device; `from` may be reused then. What is large, a batch of pictures, takes larger
  // pieces, which several threads fill. Waits where all pieces are under way.
  absl::Status write(std::byte* to, std::span<const std::byte> from, cudaStream_t stream);
  // A piece of kBytes that is free.
  absl::StatusOr<Piece*> next();

 private:
  absl::StatusOr<Piece*> next_large();

  std::array<Piece, 8> pieces_;
  std::array<Piece, 4> large_;  // made when they are needed
  size_t next_ = 0, next_large_ = 0;
};

}  // namespace partita::runtime
