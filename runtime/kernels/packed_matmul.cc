// A chunk of one operand is packed by all threads, and of the other each takes tiles and packs them for itself. Usually
// the columns are shared, by chunks that stay in the third cache: a tile of rows is in the second one, and a panel of
// columns in the first while the tile's panels go by. Of few rows all are shared, and a panel of columns is packed
// where it is used.
#include "runtime/kernels/packed_matmul.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/tiling.h"

namespace partita::runtime {
namespace {

template <typename T>
class PackedMatmul {
 public:
  PackedMatmul(const PackedShape& p, int threads)
      : p_(p),
        threads_(p.m * p.n * p.k < kWorthThreads ? 1 : threads),
        few_rows_(p.m <= kFewRows && p.m < p.n),
        inner_(p.k, divide_up(p.k, kInner), 1),
        rows_(p.m, few_rows_ ? 1 : row_tiles(), ops_.rows),
        columns_(p.n, few_rows_ ? column_tiles() : divide_up(p.n * std::min(p.k, kParts * kInner), kChunk),
                 ops_.columns),
        strip_(divide_up(columns_.tile / ops_.columns, strips())) {
    const int64_t inner = std::min(p.k, kParts * inner_.tile);
    ScratchLayout layout;
    const auto room = [&](int64_t count) { return layout.take(count * static_cast<int64_t>(sizeof(T))); };
    room((few_rows_ ? rows_.tile : columns_.tile) * inner);
    own_at_ = layout.bytes();
    room((few_rows_ ? ops_.columns : rows_.tile) * inner_.tile);
    own_bytes_ = layout.bytes() - own_at_;
  }

  // Bytes.
  int64_t scratch() const { return own_at_ + threads_ * own_bytes_; }

  void run(const T* a, const T* b, T* c, std::byte* scratch) const {
    std::atomic<int64_t> next = 0;
    const auto work = [&](int64_t thread, int64_t threads) {
      const Team team{thread, threads, next, reinterpret_cast<T*>(scratch),
                      reinterpret_cast<T*>(scratch + own_at_ + thread * own_bytes_)};
      for (int64_t from = 0; from < inner_.count(); from += kParts) {
        const int64_t to = std::min(inner_.count(), from + kParts);
        if (few_rows_) {
          share_rows(team, from, to, a, b, c);
        } else {
          for (int64_t chunk = 0; chunk < columns_.count(); ++chunk) share_columns(team, chunk, from, to, a, b, c);
        }
      }
    };
    const int team = std::min(threads_, omp_get_max_threads());  // a program may take fewer than it was prepared for
    if (team == 1) return work(0, 1);
#pragma omp parallel num_threads(team)
    work(omp_get_thread_num(), omp_get_num_threads());
  }

 private:
  // A part of the inner dimension: a panel of B takes half of the first cache. A chunk has so many of them, and one of
  // columns so many elements.
  static constexpr int64_t kInner = 256, kParts = 8, kChunk = 1 << 20;
  // Of a tile, at most and at least; and few rows.
  static constexpr int64_t kTileRows = 96, kLeastRows = 24, kTileColumns = 96, kFewRows = 1024;

  // One thread of it.
  struct Team {
    int64_t thread, threads;
    std::atomic<int64_t>& next;  // task
    T *shared, *own;             // what is packed

    void meet() const {
      if (threads == 1) return;
#pragma omp barrier
    }
    // each(i) for this thread's of `count`.
    template <typename Each>
    void divide(int64_t count, const Each& each) const {
      if (thread == 0) next = 0;
      for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; ++i) each(i);
      meet();
    }
    // each(i) for those of `count` that the others leave it.
    template <typename Each>
    void take(int64_t count, const Each& each) const {
      for (int64_t i; (i = next.fetch_add(1)) < count;) each(i);
      meet();
    }
  };

  // As many for each thread: some where there are rows enough.
  int64_t row_tiles() const {
    const int64_t tiles = divide_up(divide_up(p_.m, kTileRows), threads_) * threads_;
    for (const int64_t count : {std::max(tiles, int64_t{2} * threads_), tiles, int64_t{threads_}}) {
      if (p_.m / count >= kLeastRows) return count;
    }
    return divide_up(p_.m, kTileRows);
  }
  int64_t column_tiles() const {
    return divide_up(std::max(divide_up(p_.n, kTileColumns), int64_t{2} * threads_), threads_) * threads_;
  }
  // Of the columns, where there are too few tiles of rows.
  int64_t strips() const { return few_rows_ || rows_.count() >= threads_ ? 1 : divide_up(2 * threads_, rows_.count()); }

  // The columns of one chunk, in these parts of the inner dimension.
  void share_columns(const Team& team, int64_t chunk, int64_t from, int64_t to, const T* a, const T* b, T* c) const {
    const int64_t first = columns_.begin(chunk), width = columns_.extent(chunk),
                  panels = divide_up(width, ops_.columns), strips = divide_up(panels, strip_);
    const auto width_of = [&](int64_t panel) { return std::min(ops_.columns, width - panel * ops_.columns); };
    // Of a panel; all of an inner part lie one after the other.
    const auto packed_at = [&](int64_t z, int64_t panel) {
      return team.shared + ((inner_.begin(z) - inner_.begin(from)) * panels + inner_.extent(z) * panel) * ops_.columns;
    };
    team.divide(panels, [&](int64_t panel) {
      for (int64_t z = from; z < to; ++z)
        pack_columns(packed_at(z, panel), b, first + panel * ops_.columns, width_of(panel), z);
    });
    team.take(rows_.count() * strips, [&](int64_t task) {
      const int64_t row = rows_.begin(task / strips), rows = rows_.extent(task / strips);
      const int64_t begin = task % strips * strip_;
      for (int64_t z = from; z < to; ++z) {
        pack_rows(team.own, a, row, rows, z);
        for (int64_t panel = begin; panel < std::min(panels, begin + strip_); ++panel) {
          multiply(c + row * p_.c_row + first + panel * ops_.columns, rows, width_of(panel), team.own,
                   packed_at(z, panel), z);
        }
      }
    });
  }

  // All rows, in these parts of the inner dimension.
  void share_rows(const Team& team, int64_t from, int64_t to, const T* a, const T* b, T* c) const {
    const auto packed_at = [&](int64_t z) { return team.shared + (inner_.begin(z) - inner_.begin(from)) * rows_.tile; };
    team.divide(rows_.tile / ops_.rows, [&](int64_t panel) {
      const int64_t row = panel * ops_.rows;
      for (int64_t z = from; z < to; ++z)
        pack_rows(packed_at(z) + row * inner_.extent(z), a, row, std::min(ops_.rows, p_.m - row), z);
    });
    team.take(columns_.count(), [&](int64_t tile) {
      const int64_t end = columns_.begin(tile) + columns_.extent(tile);
      for (int64_t z = from; z < to; ++z) {
        for (int64_t column = columns_.begin(tile); column < end; column += ops_.columns) {
          const int64_t width = std::min(ops_.columns, end - column);
          pack_columns(team.own, b, column, width, z);
          multiply(c + column, p_.m, width, packed_at(z), team.own, z);
        }
      }
    });
  }

  void pack_rows(T* to, const T* a, int64_t row, int64_t rows, int64_t z) const {
    ops_.pack_rows(to, ops_.rows, a + row * p_.a_row + inner_.begin(z) * p_.a_column, p_.a_row, p_.a_column, rows,
                   inner_.extent(z));
  }
  // Of one panel.
  void pack_columns(T* to, const T* b, int64_t column, int64_t columns, int64_t z) const {
    ops_.pack_columns(to, ops_.columns, b + inner_.begin(z) * p_.b_row + column * p_.b_column, p_.b_column, p_.b_row,
                      columns, inner_.extent(z));
  }

  // Packed rows by a panel of columns.
  void multiply(T* c, int64_t rows, int64_t columns, const T* a, const T* b, int64_t z) const {
    constexpr int64_t kMost = 512;  // elements of a block
    const int64_t k = inner_.extent(z);
    const bool accumulate = z > 0 || p_.accumulate;
    const PanelRun whole{0, 0, k};
    for (int64_t i = 0; i < rows; i += ops_.rows, c += ops_.rows * p_.c_row, a += ops_.rows * k) {
      if (rows - i >= ops_.rows && columns == ops_.columns) {
        ops_.panels(c, p_.c_row, a, b, &whole, 1, accumulate);
        continue;
      }
      T block[kMost] = {};
      const int64_t count = std::min(ops_.rows, rows - i);
      for (int64_t r = 0; accumulate && r < count; ++r)
        std::copy_n(c + r * p_.c_row, columns, block + r * ops_.columns);
      ops_.panels(block, ops_.columns, a, b, &whole, 1, accumulate);
      for (int64_t r = 0; r < count; ++r) std::copy_n(block + r * ops_.columns, columns, c + r * p_.c_row);
    }
  }

  const TileOps<T>& ops_ = tile_ops<T>();
  const PackedShape p_;
  const int threads_;
  const bool few_rows_;
  const Tiling inner_, rows_, columns_;
  const int64_t strip_;  // panels
  int64_t own_at_ = 0, own_bytes_ = 0;
};

}  // namespace

template <typename T>
void multiply_packed(const PackedShape& p, const T* a, const T* b, T* c, std::byte* scratch) {
  PackedMatmul<T>(p, 1).run(a, b, c, scratch);
}
template <typename T>
int64_t packed_scratch(const PackedShape& p) {
  return PackedMatmul<T>(p, 1).scratch();
}
template void multiply_packed(const PackedShape&, const float*, const float*, float*, std::byte*);
template void multiply_packed(const PackedShape&, const double*, const double*, double*, std::byte*);
template int64_t packed_scratch<float>(const PackedShape&);
template int64_t packed_scratch<double>(const PackedShape&);

// By times on a processor of two threads without AVX-512: smaller operands are read once or twice, which copying them
// costs as well. What is to be reproducible would have one thread there.
bool is_packed(const MatmulPlan& p, bool reproducible) {
  constexpr int64_t kFew = 64, kWide = 96, kFewAtLeast = 16;
  if (has_avx512()) return false;
  if (reproducible && std::min({p.m, p.n, p.k}) >= kFewAtLeast) return true;
  return p.k >= kFew && p.m * p.n >= kWide * (p.m + p.n);
}

Kernel make_packed_matmul(const KernelRequest& r, const MatmulPlan& plan) {
  const auto of = [&]<typename T>(T) -> Kernel {
    // Many products are divided among the threads as they are.
    const bool whole =
        plan.batches() > 1 && plan.batches() >= r.threads() && worth_threads(plan.batches() * plan.m * plan.n * plan.k);
    const PackedShape shape{.m = plan.m,
                            .n = plan.n,
                            .k = plan.k,
                            .a_row = plan.a_row(),
                            .a_column = plan.a_column(),
                            .b_row = plan.b_row(),
                            .b_column = plan.b_column(),
                            .c_row = plan.n,
                            .accumulate = plan.accumulate};
    const PackedMatmul<T> product(shape, whole ? 1 : r.threads());
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
