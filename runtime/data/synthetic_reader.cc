// Synthetic: each element is a hash of seed, input name, sample number and element number, so that every split of the
// batch over ranks sees the same data. Integers are uniform in [0, range); floats have mean 0, variance 1 and lie
// within ±3.5.
#include <algorithm>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mix64.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/order/permutation.h"
#include "runtime/data/sample_reader.h"
#include "runtime/files/in_parallel.h"

namespace partita::runtime {
namespace {

struct Column {
  std::vector<std::byte> constant;  // not empty: every sample
  uint64_t key = 0;
  int64_t range = 0, elements = 0;
  DType to = DType::kInvalid;
  ConvertFunction convert = nullptr;  // from i64, or from f32
};

// The sum of four 16-bit uniforms is close to normal and, unlike log and cos, the same on every machine.
float near_normal(uint64_t bits) {
  const int64_t sum =
      static_cast<int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return static_cast<float>(sum - 2 * 0xFFFF) * (1.7320508f / 65535.0f);
}

class SyntheticReader : public SampleReader {
 public:
  SyntheticReader(int64_t samples, std::vector<Column> columns) : samples_(samples), columns_(std::move(columns)) {}

  int64_t samples() const override { return samples_ > 0 ? samples_ : kUnlimited; }
  std::string describe() const override { return "synthetic data"; }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const Column& c = columns_[static_cast<size_t>(input)];
    const int64_t bytes = c.elements * dtype_size(c.to);
    const bool large = run.count * c.elements >= kWorthThreads;
    in_parallel(large ? threads_ : 1, static_cast<size_t>(run.count), [&](size_t i) {
      std::byte* to = out.data() + static_cast<int64_t>(i) * bytes;
      if (!c.constant.empty()) {
        std::copy(c.constant.begin(), c.constant.end(), to);
      } else {
        draw(c, mix64(c.key, static_cast<uint64_t>(run.first) + i), to);
      }
    });
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kWorthThreads = 1 << 20;  // elements of a batch

  // A sample's elements, some at a time.
  static void draw(const Column& c, uint64_t key, std::byte* to) {
    constexpr int64_t kSome = 512;
    float reals[kSome];
    int64_t whole[kSome];
    const uint64_t range = static_cast<uint64_t>(c.range);
    for (int64_t first = 0; first < c.elements; first += kSome) {
      const int64_t count = std::min(kSome, c.elements - first);
      const auto bits = [&](int64_t e) { return mix64(key, static_cast<uint64_t>(first + e)); };
      if (is_float(c.to)) {
        for (int64_t e = 0; e < count; ++e) reals[e] = near_normal(bits(e));
      } else {
        for (int64_t e = 0; e < count; ++e)
          whole[e] = static_cast<int64_t>((static_cast<unsigned __int128>(bits(e)) * range) >> 64);
      }
      c.convert(is_float(c.to) ? reinterpret_cast<const std::byte*>(reals) : reinterpret_cast<const std::byte*>(whole),
                to + first * dtype_size(c.to), count);
    }
  }

  int threads_ = batch_threads();
  int64_t samples_;
  std::vector<Column> columns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_synthetic_reader(const DataConfig& config,
                                                                    const std::vector<InputSpec>& inputs) {
  std::vector<Column> columns;
  for (const InputSpec& spec : inputs) {
    PARTITA_ASSIGN_OR_RETURN(const ColumnRole role, column_role(config, spec.name));
    Column column{.key = mix64(config.seed, checksum64(as_byte_span(spec.name))),
                  .elements = sample_elements(spec),
                  .to = spec.dtype};
    if (role == ColumnRole::kPositions || role == ColumnRole::kOnes || role == ColumnRole::kZeros) {
      PARTITA_ASSIGN_OR_RETURN(column.constant, constant_sample(spec, role));
    }
    auto it = config.ranges.find(spec.name);
    column.range = it != config.ranges.end()                             ? it->second
                   : config.vocabulary > 0 && spec.dtype != DType::kBool ? config.vocabulary
                                                                         : 2;
    PARTITA_ASSIGN_OR_RETURN(column.convert,
                             find_conversion(is_float(spec.dtype) ? DType::kF32 : DType::kI64, spec.dtype));
    if (!is_float(spec.dtype)) {
      const int64_t largest = column.range - 1;
      uint64_t scratch;
      if (column.range <= 0 || column.convert(reinterpret_cast<const std::byte*>(&largest),
                                              reinterpret_cast<std::byte*>(&scratch), 1) >= 0) {
        return absl::InvalidArgumentError(cat("synthetic data: range ", column.range, " of graph input ",
                                              quote(spec.name), " does not fit ", dtype_name(spec.dtype)));
      }
    }
    columns.push_back(std::move(column));
  }
  return std::make_unique<SyntheticReader>(config.samples, std::move(columns));
}

}  // namespace partita::runtime
