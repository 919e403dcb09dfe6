// matmul with param "block": each element's sum has one order, whatever the sizes of the result are. A tile of C at a
// time: the sums of blocks over it wait on a stack, the highest two of which are added up as soon as they are branches
// of one height. B is packed into panels of whole vectors, so that the last columns are computed as all others.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/kernels/matmul_plan.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

constexpr int64_t kRows = 192, kColumns = 128, kInner = 256;  // of a tile of C; of a panel of B
constexpr int64_t kVector = 32;                               // columns that all versions of the tiles divide
constexpr int64_t kTurned = 16;                               // rows and columns that are turned at a time

template <typename T>
class OrderedMatmul {
 public:
  explicit OrderedMatmul(const MatmulPlan& plan) : p_(plan) {}

  void run(const T* a, const T* b, T* c) const {
    const int64_t rows = (p_.m + kRows - 1) / kRows, columns = (p_.n + kColumns - 1) / kColumns;
#pragma omp parallel if (worth_threads(p_.batches() * p_.m * p_.n * p_.k))
    {
      Scratch scratch;
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < p_.batches() * rows * columns; ++task) {
        const MatmulPlan::Batch at = p_.offsets(task / columns / rows);
        const int64_t row = task / columns % rows * kRows, column = task % columns * kColumns;
        const Tile tile{a + at.a + row * p_.a_row(), b + at.b + column * p_.b_column(), std::min(kRows, p_.m - row),
                        std::min(kColumns, p_.n - column)};
        sum(tile, scratch);
        for (int64_t i = 0; i < tile.rows; ++i)
          std::copy_n(scratch.level(0) + i * kColumns, tile.columns, c + at.c + (row + i) * p_.n + column);
      }
    }
  }

 private:
  struct Tile {
    const T *a, *b;
    int64_t rows, columns;
  };
  struct Scratch {
    std::vector<T> panel, levels;
    T* level(size_t k) {
      const size_t size = kRows * kColumns;
      if (levels.size() < (k + 1) * size) levels.resize((k + 1) * size);
      return levels.data() + k * size;
    }
  };

  // Into level 0.
  void sum(const Tile& tile, Scratch& scratch) const {
    size_t depth = 0;
    for (int64_t t = 0; t < p_.blocks; ++t) {
      block(tile, t, scratch.level(depth++), scratch);
      for (int64_t joined = t; joined % 2 == 1; joined /= 2, --depth) {
        const T* right = scratch.level(depth - 1);
        T* left = scratch.level(depth - 2);
        for (int64_t k = 0; k < tile.rows * kColumns; ++k) left[k] += right[k];
      }
    }
  }

  void block(const Tile& tile, int64_t t, T* to, Scratch& scratch) const {
    bool first = true;
    for (int64_t group = 0; group < p_.groups; ++group) {
      const int64_t begin = (group * p_.blocks + t) * p_.block;
      for (int64_t z = begin; z < begin + p_.block; z += kInner, first = false) {
        const int64_t inner = std::min(kInner, begin + p_.block - z);
        const int64_t width = pack(tile, z, inner, scratch);
        tile_ops<T>().gemm(to, kColumns, tile.a + z * p_.a_column(), p_.a_row(), p_.a_column(), scratch.panel.data(),
                           width, tile.rows, width, inner, !first);
      }
    }
    if (first) std::fill_n(to, tile.rows * kColumns, T(0));
  }

  // Rows [z, z + inner) of B, as long as whole vectors; returns their length.
  int64_t pack(const Tile& tile, int64_t z, int64_t inner, Scratch& scratch) const {
    const int64_t width = (tile.columns + kVector - 1) / kVector * kVector;
    scratch.panel.resize(kInner * kColumns);
    T* panel = scratch.panel.data();
    const T* from = tile.b + z * p_.b_row();
    if (!p_.transpose_b) {
      for (int64_t i = 0; i < inner; ++i) std::copy_n(from + i * p_.n, tile.columns, panel + i * width);
    } else {
      for (int64_t i0 = 0; i0 < inner; i0 += kTurned) {
        for (int64_t j = 0; j < tile.columns; ++j) {
          for (int64_t i = i0; i < std::min(inner, i0 + kTurned); ++i) panel[i * width + j] = from[j * p_.k + i];
        }
      }
    }
    for (int64_t i = 0; i < inner && tile.columns < width; ++i)
      std::fill_n(panel + i * width + tile.columns, width - tile.columns, T(0));
    return width;
  }

  const MatmulPlan p_;
};

}  // namespace

Kernel make_ordered_matmul(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const MatmulPlan plan, MatmulPlan::make(r));
  if (!r.s("epilogue", "").empty()) return r.error("no epilogue beside param 'block'");
  if (r.dtype(0) != r.dtype(1) || r.dtype(0) != r.out(0).dtype) return r.error("operands of one dtype");
  auto of = [&]<typename T>(T) -> Kernel {
    return make_kernel([product = OrderedMatmul<T>(plan)](std::span<std::byte* const> b) {
      product.run(as<T>(b[0]), as<T>(b[1]), as<T>(b.back()));
    });
  };
  if (r.dtype() == DType::kF32) return of(float{});
  if (r.dtype() == DType::kF64) return of(double{});
  return r.unsupported();
}

}  // namespace partita::runtime
