// Of the tree over the terms t0, t1, ... the sums of whole branches that still wait for their right neighbours are
// kept, one a level: before t6 of eight, ((t0 + t1) + (t2 + t3)) and (t4 + t5). The lowest level, a single term, waits
// in the step's result, which is the sum in the end; the levels between are the kernel's own.
#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/kernel/region_memory.h"
#include "runtime/kernels/kernel_request.h"
#include "runtime/kernels/table.h"
#include "runtime/program/tree_sums.h"

namespace partita::runtime {
namespace {

constexpr int64_t kBlock = 1024;  // elements

template <typename T>
class AccumulateTree final : public LibraryKernel {
 public:
  AccumulateTree(int64_t count, int64_t terms, RegionMemory between)
      : count_(count), terms_(terms), between_(std::move(between)) {}

  void run(std::span<std::byte* const> b) override {
    const int joined = std::countr_one(static_cast<uint64_t>(term_));  // levels that this term completes
    term_ = (term_ + 1) % terms_;
    const T *lowest = as<T>(b[0]), *term = as<T>(b[1]);
    T* const to = joined == 0 || term_ == 0 ? as<T>(b[2]) : level(joined);
#pragma omp parallel for schedule(static) if (worth_threads(count_))
    for (int64_t begin = 0; begin < count_; begin += kBlock) {
      const int64_t length = std::min(kBlock, count_ - begin);
      T sum[kBlock];
      std::copy_n(term + begin, length, sum);
      for (int k = 0; k < joined; ++k) {
        const T* left = (k == 0 ? lowest : level(k)) + begin;
        for (int64_t i = 0; i < length; ++i) sum[i] = static_cast<T>(left[i] + sum[i]);
      }
      std::copy_n(sum, length, to + begin);
    }
  }

 private:
  T* level(int k) const { return as<T>(between_.data()) + static_cast<int64_t>(k - 1) * count_; }

  const int64_t count_, terms_;
  const RegionMemory between_;
  int64_t term_ = 0;  // of the step's terms, the next one
};

}  // namespace

Kernel make_accumulate_tree(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const int64_t terms = r.i("micro_batches", 0);
  if (r.in(0).shape != r.in(1).shape || r.in(0).shape != r.out(0).shape || r.dtype(0) != r.dtype(1) ||
      r.dtype(0) != r.dtype(2) || terms < 1 || !std::has_single_bit(static_cast<uint64_t>(terms)))
    return r.error("a sum, a term and the next sum of one type, and a power of two of terms");
  const int64_t count = *element_count(r.out(0).shape);
  Kernel kernel = r.unsupported();
  absl::Status room;
  with_float_type(r.dtype(), [&]<typename T>(T) {
    auto between = RegionMemory::allocate(tree_levels_between(terms) * count * static_cast<int64_t>(sizeof(T)));
    if (!between.ok()) return void(room = between.status());
    kernel = std::make_unique<AccumulateTree<T>>(count, terms, *std::move(between));
  });
  PARTITA_RETURN_IF_ERROR(room);
  return kernel;
}

}  // namespace partita::runtime
