// matmul with param "block": each element's sum has one order, whatever the sizes of the result are. A tile of C at a
// time: the sums of blocks over it wait on a stack, the highest two of which are added up as soon as they are branches
// of one height. Both operands are packed into panels which the inner loops read from end to end.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "runtime/kernels/matmul_plan.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/tiling.h"

namespace partita::runtime {
namespace {

// Of a tile of C, at most, and of the inner dimension: what is packed of A stays in the second cache.
constexpr int64_t kTileRows = 264, kTileColumns = 384, kInner = 384;

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
    std::vector<T> a, b, levels, block;  // block: of a branch that is added at once
  };
  // Of C, as large as the registers hold; its rows are `row` elements apart.
  struct Block {
    T* at;
    int64_t row;
  };

  // As large as may be, but some for each thread.
  std::pair<Tiling, Tiling> tiles(int64_t threads) const {
    int64_t rows = divide_up(p_.m, kTileRows), columns = divide_up(p_.n, kTileColumns);
    while (p_.batches() * rows * columns < 4 * threads && p_.n / columns > kTileColumns / 4) ++columns;
    return {Tiling(p_.m, rows, ops_.rows), Tiling(p_.n, columns, ops_.columns)};
  }

  void sum(const Tile& tile, Scratch& scratch) const {
    const int64_t width = divide_up(tile.columns, ops_.columns) * ops_.columns;
    const int64_t height = divide_up(tile.rows, ops_.rows) * ops_.rows, size = height * width;
    const auto room = [](std::vector<T>& v, int64_t n) { v.resize(std::max(v.size(), static_cast<size_t>(n))); };
    room(scratch.levels, std::bit_width(static_cast<uint64_t>(p_.blocks)) * size);
    room(scratch.a, height * kInner);
    room(scratch.b, ops_.columns * kInner);
    room(scratch.block, ops_.rows * ops_.columns);
    const int64_t chunks = divide_up(p_.block, kInner), chunk = divide_up(p_.block, chunks);
    int64_t depth = 0;
    for (int64_t t = 0; t < p_.blocks; ++t) {
      const int64_t joined = std::countr_one(static_cast<uint64_t>(t));
      for (int64_t part = 0; part < p_.groups * chunks; ++part) {
        const int64_t at = part % chunks * chunk, z = (part / chunks * p_.blocks + t) * p_.block + at;
        const int64_t inner = std::min(chunk, p_.block - at);
        const PanelRun whole{0, 0, inner};
        const bool first = part == 0, last = part + 1 == p_.groups * chunks;
        ops_.pack_rows(scratch.a.data(), ops_.rows, tile.a + z * p_.a_column(), p_.a_row(), p_.a_column(), tile.rows,
                       inner);
        for (int64_t j = 0; j < width; j += ops_.columns) {
          ops_.pack_columns(scratch.b.data(), ops_.columns, tile.b + z * p_.b_row() + j * p_.b_column(), p_.b_column(),
                            p_.b_row(), std::min(ops_.columns, tile.columns - j), inner);
          for (int64_t i = 0; i < height; i += ops_.rows) {
            const auto level = [&](int64_t k) {
              return Block{scratch.levels.data() + k * size + i * width + j, width};
            };
            Block sum = first && last && joined > 0 ? Block{scratch.block.data(), ops_.columns} : level(depth);
            ops_.panels(sum.at, sum.row, scratch.a.data() + i * inner, scratch.b.data(), &whole, 1, !first);
            for (int64_t k = depth - 1; last && k >= depth - joined; --k) {
              add(level(k), sum);
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

  void add(const Block& to, const Block& from) const {
    for (int64_t i = 0; i < ops_.rows; ++i) ops_.add(to.at + i * to.row, from.at + i * from.row, ops_.columns);
  }

  const TileOps<T>& ops_ = tile_ops<T>();
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
