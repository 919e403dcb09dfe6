// A chunk of B is packed by all threads and stays in the third cache, while they take tiles of rows: a tile's rows of A
// are packed by who takes it, into its second cache, and each panel of B is in the first one while the tile's panels go
// by.
#include "runtime/kernels/packed_matmul.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/tiling.h"

namespace partita::runtime {
namespace {

template <typename T>
class PackedMatmul {
 public:
  PackedMatmul(const MatmulPlan& plan, int threads)
      : p_(plan),
        threads_(plan.m * plan.n * plan.k < kWorthThreads ? 1 : threads),
        inner_(plan.k, divide_up(plan.k, kInner), 1),
        rows_(plan.m, row_tiles(), ops_.rows),
        columns_(plan.n, divide_up(plan.n * std::min(plan.k, kParts * kInner), kChunk), ops_.columns),
        strip_(divide_up(columns_.tile / ops_.columns, strips())) {
    ScratchLayout layout;
    b_ = layout.take(columns_.tile * std::min(plan.k, kParts * inner_.tile) * static_cast<int64_t>(sizeof(T)));
    a_ = layout.take(0);
    a_bytes_ = divide_up(rows_.tile * inner_.tile * static_cast<int64_t>(sizeof(T)), 64) * 64;
    layout.take(threads_ * a_bytes_);
    scratch_ = layout.bytes();
  }

  int64_t scratch() const { return scratch_; }

  void run(const T* a, const T* b, T* c, std::byte* scratch) const {
    std::atomic<int64_t> next = 0;
    const int team = std::min(threads_, omp_get_max_threads());  // a program may take fewer than it was prepared for
    if (team == 1) return work(a, b, c, scratch, 0, 1, next);
#pragma omp parallel num_threads(team)
    work(a, b, c, scratch, omp_get_thread_num(), omp_get_num_threads(), next);
  }

 private:
  // A part of the inner dimension: a panel of B takes half of the first cache. A chunk of B has so many of them, and
  // elements.
  static constexpr int64_t kInner = 256, kParts = 8, kChunk = 1 << 20;
  // Multiplications: below it waiting for the last thread costs more than the others save.
  static constexpr int64_t kWorthThreads = 1 << 20;
  static constexpr int64_t kTileRows = 96, kFewRows = 24;

  // As many for each thread: some where there are rows enough.
  int64_t row_tiles() const {
    const int64_t tiles = divide_up(divide_up(p_.m, kTileRows), threads_) * threads_;
    for (const int64_t count : {std::max(tiles, int64_t{2} * threads_), tiles, int64_t{threads_}}) {
      if (p_.m / count >= kFewRows) return count;
    }
    return divide_up(p_.m, kTileRows);
  }
  // Of the columns, where there are too few tiles of rows.
  int64_t strips() const { return rows_.count() >= threads_ ? 1 : divide_up(2 * threads_, rows_.count()); }

  void work(const T* a, const T* b, T* c, std::byte* scratch, int64_t thread, int64_t threads,
            std::atomic<int64_t>& next) const {
    T* const packed = reinterpret_cast<T*>(scratch + b_);
    T* const rows = reinterpret_cast<T*>(scratch + a_ + thread * a_bytes_);
    const auto meet = [&] {
      if (threads == 1) return;
#pragma omp barrier
    };
    for (int64_t chunk = 0; chunk < columns_.count() * divide_up(inner_.count(), kParts); ++chunk) {
      const int64_t j = chunk % columns_.count(), from = chunk / columns_.count() * kParts;
      const int64_t to = std::min(inner_.count(), from + kParts);
      const int64_t first = columns_.begin(j), width = columns_.extent(j), panels = divide_up(width, ops_.columns);
      // Of a panel, where all of an inner part lie one after the other.
      const auto packed_at = [&](int64_t z, int64_t panel) {
        return packed + ((inner_.begin(z) - inner_.begin(from)) * panels + inner_.extent(z) * panel) * ops_.columns;
      };
      if (thread == 0) next = 0;
      for (int64_t panel = panels * thread / threads; panel < panels * (thread + 1) / threads; ++panel) {
        const int64_t column = panel * ops_.columns;
        for (int64_t z = from; z < to; ++z) {
          ops_.pack_columns(packed_at(z, panel), b + inner_.begin(z) * p_.b_row() + (first + column) * p_.b_column(),
                            p_.b_column(), p_.b_row(), std::min(ops_.columns, width - column), inner_.extent(z));
        }
      }
      meet();
      const int64_t strips = divide_up(panels, strip_);
      for (int64_t task; (task = next.fetch_add(1)) < rows_.count() * strips;) {
        const int64_t row = rows_.begin(task / strips), count = rows_.extent(task / strips);
        const int64_t begin = task % strips * strip_;
        for (int64_t z = from; z < to; ++z) {
          const int64_t k = inner_.extent(z);
          ops_.pack_rows(rows, a + row * p_.a_row() + inner_.begin(z) * p_.a_column(), p_.a_row(), p_.a_column(), count,
                         k);
          for (int64_t panel = begin; panel < std::min(panels, begin + strip_); ++panel) {
            const int64_t column = panel * ops_.columns;
            multiply(c + row * p_.n + first + column, count, std::min(ops_.columns, width - column), rows,
                     packed_at(z, panel), k, z > 0 || p_.accumulate);
          }
        }
      }
      meet();
    }
  }

  void multiply(T* c, int64_t rows, int64_t columns, const T* a, const T* b, int64_t k, bool accumulate) const {
    constexpr int64_t kMost = 512;  // elements of a block
    for (int64_t i = 0; i < rows; i += ops_.rows, c += ops_.rows * p_.n, a += ops_.rows * k) {
      if (rows - i >= ops_.rows && columns == ops_.columns) {
        ops_.panels(c, p_.n, a, b, k, accumulate);
        continue;
      }
      T block[kMost] = {};
      const int64_t count = std::min(ops_.rows, rows - i);
      for (int64_t r = 0; accumulate && r < count; ++r) std::copy_n(c + r * p_.n, columns, block + r * ops_.columns);
      ops_.panels(block, ops_.columns, a, b, k, accumulate);
      for (int64_t r = 0; r < count; ++r) std::copy_n(block + r * ops_.columns, columns, c + r * p_.n);
    }
  }

  const TileOps<T>& ops_ = tile_ops<T>();
  const MatmulPlan p_;
  const int threads_;
  const Tiling inner_, rows_, columns_;
  const int64_t strip_;  // panels
  int64_t a_ = 0, b_ = 0, a_bytes_ = 0, scratch_ = 0;
};

}  // namespace

// By times on a processor of two threads without AVX-512: smaller operands are read once or twice, which copying them
// costs as well. What is to be reproducible would have one thread there.
bool is_packed(const MatmulPlan& p, bool reproducible) {
  constexpr int64_t kFew = 64, kWide = 96, kFewAtLeast = 16;
  if (has_avx512()) return false;
  if (reproducible && std::min({p.m, p.n, p.k}) >= kFewAtLeast) return true;
  return p.k >= kFew && p.m * p.n >= kWide * (p.m + p.n);
}

Kernel make_packed_matmul(const KernelRequest& r, const MatmulPlan& plan) {
  if (plan.k == 0) {
    const size_t bytes = static_cast<size_t>(*element_count(r.out(0).shape) * dtype_size(r.dtype()));
    return make_kernel([bytes, keep = plan.accumulate](std::span<std::byte* const> b) {
      if (!keep) std::memset(b.back(), 0, bytes);
    });
  }
  const auto of = [&]<typename T>(T) -> Kernel {
    // Many products are divided among the threads as they are.
    const bool whole =
        plan.batches() > 1 && plan.batches() >= r.threads() && worth_threads(plan.batches() * plan.m * plan.n * plan.k);
    const PackedMatmul<T> product(plan, whole ? 1 : r.threads());
    const int threads = whole ? r.threads() : 1;
    r.scratch()->reserve(threads * product.scratch());
    return make_kernel([plan, product, threads, memory = r.scratch()](std::span<std::byte* const> b) {
      const auto multiply = [&](int64_t i, std::byte* scratch) {
        const MatmulPlan::Batch at = plan.offsets(i);
        product.run(as<T>(b[0]) + at.a, as<T>(b[1]) + at.b, as<T>(b.back()) + at.c, scratch);
      };
      if (threads == 1) {
        for (int64_t i = 0; i < plan.batches(); ++i) multiply(i, memory->data());
        return;
      }
#pragma omp parallel for schedule(static) num_threads(std::min(threads, omp_get_max_threads()))
      for (int64_t i = 0; i < plan.batches(); ++i)
        multiply(i, memory->data() + omp_get_thread_num() * product.scratch());
    });
  };
  return r.dtype() == DType::kF64 ? of(double{}) : of(float{});
}

}  // namespace partita::runtime
