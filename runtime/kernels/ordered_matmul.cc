// matmul with param "block": each element's sum has one order, whatever the sizes of the result are. A tile of C at a
// time: the sums of blocks over it wait on a stack, the highest two of which are added up as soon as they are branches
// of one height. Both operands are packed into panels which the inner loops read from end to end.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/kernels/matmul_plan.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

// What all versions of the tiles divide: rows of a panel of A, columns of one of B.
constexpr int64_t kRows = 12, kColumns = 32;
// Of a tile of C, at most, and of the inner dimension: what is packed of A stays in the second cache.
constexpr int64_t kTileRows = 264, kTileColumns = 384, kInner = 384;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One dimension of C in tiles of nearly one size, each whole panels but for the last one's end.
struct Tiling {
  int64_t size, tile;
  Tiling(int64_t size, int64_t tiles, int64_t panel)
      : size(size), tile(divide_up(divide_up(size, tiles), panel) * panel) {}
  int64_t count() const { return divide_up(size, tile); }
  int64_t begin(int64_t k) const { return k * tile; }
  int64_t extent(int64_t k) const { return std::min(tile, size - k * tile); }
};

// to[j * across + i] = from[i * along + j] for i, j < kSquare.
constexpr int64_t kSquare = 4;
template <typename T>
void turn_square(const T* from, int64_t along, T* to, int64_t across) {
  typedef T V __attribute__((vector_size(kSquare * sizeof(T))));
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> I __attribute__((vector_size(kSquare * sizeof(T))));
  V row[kSquare], half[kSquare];
  for (int64_t i = 0; i < kSquare; ++i) std::memcpy(&row[i], from + i * along, sizeof(V));
  for (int64_t i = 0; i < 2; ++i) {
    half[i] = __builtin_shuffle(row[i], row[i + 2], I{0, 4, 1, 5});
    half[i + 2] = __builtin_shuffle(row[i], row[i + 2], I{2, 6, 3, 7});
  }
  for (int64_t i = 0; i < 2; ++i) {
    const V low = __builtin_shuffle(half[2 * i], half[2 * i + 1], I{0, 4, 1, 5});
    const V high = __builtin_shuffle(half[2 * i], half[2 * i + 1], I{2, 6, 3, 7});
    std::memcpy(to + 2 * i * across, &low, sizeof(V));
    std::memcpy(to + (2 * i + 1) * across, &high, sizeof(V));
  }
}

// Packs [extent, inner] elements, `across` apart and `along` apart, one of which is 1, into panels of kPanel of the
// former; the rest of the last one is zero.
template <int64_t kPanel, typename T>
void pack(const T* from, int64_t across, int64_t along, int64_t extent, int64_t inner, T* to) {
  for (int64_t p = 0; p < extent; p += kPanel, to += kPanel * inner) {
    const T* panel = from + p * across;
    const int64_t width = std::min(kPanel, extent - p);
    if (width < kPanel) {
      std::fill_n(to, kPanel * inner, T(0));
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < inner; ++i) to[i * kPanel + j] = panel[j * across + i * along];
      }
    } else if (across == 1) {
      for (int64_t i = 0; i < inner; ++i) std::memcpy(to + i * kPanel, panel + i * along, kPanel * sizeof(T));
    } else {
      const int64_t squares = inner / kSquare * kSquare;
      for (int64_t i = 0; i < squares; i += kSquare) {
        for (int64_t j = 0; j < kPanel; j += kSquare)
          turn_square(panel + j * across + i, across, to + i * kPanel + j, kPanel);
      }
      for (int64_t i = squares; i < inner; ++i) {
        for (int64_t j = 0; j < kPanel; ++j) to[i * kPanel + j] = panel[j * across + i];
      }
    }
  }
}

template <typename T>
class OrderedMatmul {
 public:
  explicit OrderedMatmul(const MatmulPlan& plan) : p_(plan) {}

  void run(const T* a, const T* b, T* c) const {
    if (p_.k == 0) return static_cast<void>(std::fill_n(c, p_.batches() * p_.m * p_.n, T(0)));
    const bool threaded = worth_threads(p_.batches() * p_.m * p_.n * p_.k);
    const auto [rows, columns] = tiles(threaded ? omp_get_max_threads() : 1);
    const int64_t tasks = p_.batches() * rows.count() * columns.count();
#pragma omp parallel for schedule(dynamic, 1) if (threaded)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t i = task % rows.count(), j = task / rows.count() % columns.count();
      const MatmulPlan::Batch at = p_.offsets(task / columns.count() / rows.count());
      static thread_local Scratch scratch;
      sum({a + at.a + rows.begin(i) * p_.a_row(), b + at.b + columns.begin(j) * p_.b_column(),
           c + at.c + rows.begin(i) * p_.n + columns.begin(j), rows.extent(i), columns.extent(j)},
          scratch);
    }
  }

 private:
  struct Tile {
    const T *a, *b;
    T* c;
    int64_t rows, columns;
  };
  struct Scratch {
    std::vector<T> a, b = std::vector<T>(kColumns * kInner), levels;
  };
  // Some rows of kColumns each.
  struct Rows {
    T* at;
    int64_t stride, count;
    void add(const Rows& other) const {
      for (int64_t i = 0; i < count; ++i) tile_ops<T>().add(at + i * stride, other.at + i * other.stride, kColumns);
    }
  };

  // As large as may be, but some for each thread.
  std::pair<Tiling, Tiling> tiles(int64_t threads) const {
    int64_t rows = divide_up(p_.m, kTileRows), columns = divide_up(p_.n, kTileColumns);
    while (p_.batches() * rows * columns < 4 * threads && p_.n / columns > kTileColumns / 4) ++columns;
    return {Tiling(p_.m, rows, kRows), Tiling(p_.n, columns, kColumns)};
  }

  void sum(const Tile& tile, Scratch& scratch) const {
    const int64_t width = divide_up(tile.columns, kColumns) * kColumns, size = tile.rows * width;
    const int64_t height = std::bit_width(static_cast<uint64_t>(p_.blocks));
    scratch.levels.resize(std::max(scratch.levels.size(), static_cast<size_t>(height * size)));
    scratch.a.resize(std::max(scratch.a.size(), static_cast<size_t>((tile.rows + kRows) * kInner)));
    const int64_t chunks = divide_up(p_.block, kInner), chunk = divide_up(p_.block, chunks);
    int64_t depth = 0;
    for (int64_t t = 0; t < p_.blocks; ++t) {
      const int64_t joined = std::countr_one(static_cast<uint64_t>(t));
      for (int64_t part = 0; part < p_.groups * chunks; ++part) {
        const int64_t at = part % chunks * chunk, z = (part / chunks * p_.blocks + t) * p_.block + at;
        const int64_t inner = std::min(chunk, p_.block - at);
        const bool first = part == 0, last = part + 1 == p_.groups * chunks;
        pack<kRows>(tile.a + z * p_.a_column(), p_.a_row(), p_.a_column(), tile.rows, inner, scratch.a.data());
        for (int64_t j = 0; j < tile.columns; j += kColumns) {
          pack<kColumns>(tile.b + z * p_.b_row() + j * p_.b_column(), p_.b_column(), p_.b_row(),
                         std::min(kColumns, tile.columns - j), inner, scratch.b.data());
          for (int64_t i = 0; i < tile.rows; i += kRows) {
            const int64_t rows = std::min(kRows, tile.rows - i);
            const auto level = [&](int64_t k) {
              return Rows{scratch.levels.data() + k * size + i * width + j, width, rows};
            };
            T here[kRows * kColumns];  // of a branch that is added at once
            Rows sum = first && last && joined > 0 ? Rows{here, kColumns, rows} : level(depth);
            tile_ops<T>().gemm(sum.at, sum.stride, scratch.a.data() + i * inner, 1, kRows, scratch.b.data(), kColumns,
                               rows, kColumns, inner, !first);
            for (int64_t k = depth - 1; last && k >= depth - joined; --k) {
              level(k).add(sum);
              sum = level(k);
            }
          }
        }
      }
      depth += 1 - joined;
    }
    for (int64_t i = 0; i < tile.rows; ++i)
      std::copy_n(scratch.levels.data() + i * width, tile.columns, tile.c + i * p_.n);
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
