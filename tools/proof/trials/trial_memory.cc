#include "tools/proof/trials/trial_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/cat.h"
#include "base/status.h"
#include "ir/type/literal.h"
#include "runtime/program/program_check.h"

namespace partita {
namespace {

using runtime::Operand;

constexpr int64_t kMargin = 4096, kAlignment = 64;
constexpr std::byte kNothing{0xff};  // NaN in every float type
constexpr int64_t kPeriod = 8191;    // numbers that are drawn of an operand, at least: a prime, so that rows differ

int64_t size_of(const Operand& o) { return o.dtype == DType::kInvalid ? 0 : byte_size({o.dtype, o.shape}); }

// Where each operand lies: those that overlap in the program do so here, all others are apart. Returns the bytes.
int64_t place(const runtime::Step& step, std::vector<int64_t>& at) {
  at.assign(step.operands.size(), -1);
  std::vector<size_t> order(step.operands.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t k) {
    const Operand& o = step.operands[k];
    return std::pair{o.address.region, o.address.offset};
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  int64_t end = 0, begin = 0;                           // of the cluster, here
  std::pair<runtime::Region, int64_t> first{}, last{};  // and in the program
  bool open = false;
  for (size_t k : order) {
    const Operand& o = step.operands[k];
    if (o.dtype == DType::kInvalid) continue;
    const int64_t behind = o.address.offset + size_of(o);
    if (!open || o.address.region != last.first || o.address.offset >= last.second) {
      begin = (end + kMargin + kAlignment - 1) / kAlignment * kAlignment;
      first = last = {o.address.region, o.address.offset};
      open = true;
    }
    last.second = std::max(last.second, behind);
    at[k] = begin + o.address.offset - first.second;
    end = begin + last.second - first.second;
  }
  return end + kMargin;
}

double special(Draw draw, DType type, std::mt19937_64& engine) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sign = engine() % 2 == 0 ? 1 : -1, large = type == DType::kF16 ? 100 : 0x1p60;
  const double least = type == DType::kF16 ? 0x1p-24 : type == DType::kF64 ? 0x1p-1074 : 0x1p-133;
  switch (draw) {
    case Draw::kSmall:
      return sign * (engine() % 2 == 0 ? 0 : least * static_cast<double>(engine() % 64));
    case Draw::kLarge:
      return sign * (engine() % 2 == 0 ? kInfinity : large);
    case Draw::kNan:
      return std::numeric_limits<double>::quiet_NaN();
    default:
      return sign;
  }
}

Tensor drawn(DType type, int64_t count, Draw draw, int64_t rare, const std::optional<IndexBounds>& bounds,
             std::mt19937_64& engine) {
  Tensor t = Tensor::zeros({type, {count}});
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  const auto share = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  const bool wild = draw == Draw::kLarge || draw == Draw::kNan;
  for (double& x : t.f) {
    const bool ordinary = draw == Draw::kOrdinary || draw == Draw::kPositive || below(rare) != 0;
    x = !ordinary ? special(draw, type, engine) : draw == Draw::kPositive ? 0.25 + 3.75 * share() : 4 * share() - 2;
  }
  for (int64_t& i : t.i) {
    if (type == DType::kBool) {
      i = below(2);
    } else if (bounds) {
      i = bounds->low + below(bounds->high - bounds->low);
    } else {
      i = wild && below(8) == 0 ? static_cast<int64_t>(engine()) : below(64);
    }
  }
  return t;
}

}  // namespace

int64_t TrialMemory::bytes(const runtime::Step& step) {
  std::vector<int64_t> at;
  return 2 * place(step, at);
}

absl::StatusOr<TrialMemory> TrialMemory::allocate(const runtime::Step& step) {
  TrialMemory m;
  m.step_ = &step;
  const int64_t bytes = place(step, m.at_);
  PARTITA_ASSIGN_OR_RETURN(m.memory_, runtime::RegionMemory::allocate(bytes));
  PARTITA_ASSIGN_OR_RETURN(m.drawn_, runtime::RegionMemory::allocate(bytes));
  for (int64_t at : m.at_) {
    m.now_.push_back(at < 0 ? nullptr : m.memory_.data() + at);
    m.before_.push_back(at < 0 ? nullptr : m.drawn_.data() + at);
  }
  std::memset(m.drawn_.data(), static_cast<int>(kNothing), static_cast<size_t>(bytes));
  return m;
}

void TrialMemory::draw(Draw draw, uint64_t seed, int64_t rare, const std::vector<std::optional<IndexBounds>>& bounds) {
  // Results first: where one lies over an operand, that is what is there before.
  for (size_t n = step_->operands.size(), k = n; k-- > 0;) {
    const Operand& o = step_->operands[k];
    if (at_[k] < 0) continue;
    std::mt19937_64 engine(seed * 1009 + k);
    const int64_t count = std::min(elements(o.shape), std::max(kPeriod, 8 * rare + 1));
    const Literal numbers =
        to_literal(drawn(o.dtype, count, draw, rare, k < bounds.size() ? bounds[k] : std::nullopt, engine));
    const auto period = static_cast<int64_t>(numbers.bytes().size()), size = size_of(o);
    for (int64_t at = 0; at < size; at += std::max<int64_t>(1, period))
      std::memcpy(drawn_.data() + at_[k] + at, numbers.data, static_cast<size_t>(std::min(period, size - at)));
  }
  std::memcpy(memory_.data(), drawn_.data(), static_cast<size_t>(memory_.bytes()));
}

void TrialMemory::put(size_t operand, std::span<const std::byte> bytes) {
  std::memcpy(drawn_.data() + at_[operand], bytes.data(), bytes.size());
  std::memcpy(memory_.data() + at_[operand], bytes.data(), bytes.size());
}

void TrialMemory::restore(size_t operand, int64_t from, int64_t bytes) {
  std::memcpy(now_[operand] + from, before_[operand] + from, static_cast<size_t>(bytes));
}

std::string TrialMemory::written_beside() const {
  if (std::memcmp(memory_.data(), drawn_.data(), static_cast<size_t>(memory_.bytes())) == 0) return "";
  const std::byte* first = std::mismatch(memory_.data(), memory_.data() + memory_.bytes(), drawn_.data()).first;
  const int64_t at = first - memory_.data();
  size_t nearest = 0;
  for (size_t k = 0; k < at_.size(); ++k) {
    if (at_[k] >= 0 && at_[k] <= at && (at_[nearest] < 0 || at_[nearest] > at || at_[k] > at_[nearest])) nearest = k;
  }
  return cat("byte ", at - at_[nearest], " from the start of operand ", nearest, ", which has ",
             size_of(step_->operands[nearest]));
}

}  // namespace partita
