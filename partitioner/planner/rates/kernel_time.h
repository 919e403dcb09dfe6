// Time of kernels on one device, by roofline with the device's efficiency curves.
#pragma once

#include <array>

#include "partitioner/planner/cluster/device_profile.h"
#include "partitioner/planner/workload/workload.h"

namespace partita {

// Of what is not marked as a product of fp8 numbers.
constexpr Precision usual_precision(Precision p) { return p == Precision::kFp8 ? Precision::kBf16 : p; }

struct ComputeOptions {
  Precision precision = Precision::kFp32;
  bool flash = true;  // attention in one kernel; else scores are kept in memory
  double element_bytes() const { return precision == Precision::kFp32 || precision == Precision::kTf32 ? 4 : 2; }
};

// The share of a unit's work that one rank does: of samples, positions, and the axes' sizes.
struct Share {
  double samples = 1;  // of a micro-batch
  double context = 1;  // positions are divided by it
  double tensor = 1;
  double expert = 1;
  bool sequence_parallel = false;
  double row_parts = 1;  // of products that the tensor axis divides (Layout::overlap_products)
};

struct UnitTime {
  double forward = 0, input_gradient = 0, weight_gradient = 0;
  double attention = 0;                            // of forward
  double beside_forward = 0, beside_backward = 0;  // of all: products that run beside collectives of the tensor axis
  std::array<double, kRecomputeModes> again{};     // of forward, what each mode of recomputation repeats; 0: not known
};

// Seconds of one contraction.
double matrix_time(const DeviceProfile& device, Precision precision, double batch, double m, double n, double k,
                   double element_bytes);
// Seconds of kernels that move `bytes` in all, in `kernels` launches.
double memory_time(const DeviceProfile& device, double bytes, double kernels);

UnitTime unit_time(const UnitWork& unit, const Workload& workload, const DeviceProfile& device,
                   const ComputeOptions& options, const Share& share);

// Whether ranks of the context axis have each a part of the heads (of the key heads, or also of the query heads of
// each) or of the samples: under a causal mask wherever they can, over all keys where that sends less. Else queries
// stay in parts, keys are gathered, and hidden pairs are computed too.
bool exchanges_heads(const AttentionWork& attention, const Share& share);
// How many times its own part of the keys a rank of the context axis reads at once: all of them where it exchanges
// nothing, or where queries' heads alone are divided.
double keys_on_rank(const AttentionWork& attention, const Share& share);

// `size` in parts of a tensor axis that need not divide it: the largest part.
double padded_part(double size, double parts);

}  // namespace partita
