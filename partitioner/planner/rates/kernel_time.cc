#include "partitioner/planner/rates/kernel_time.h"

#include <algorithm>
#include <cmath>

#include "partitioner/prepare/context_axes.h"

namespace partita {
namespace {

// A sum over windows where the device has a rate for them. Channels are not divided: a rank that has a part of them
// runs a narrower convolution of the same kind.
double convolution_time(const DeviceProfile& device, const MatrixWork& x, const ComputeOptions& options) {
  double flops = 2 * x.batch * x.m * x.n * x.k;
  double share = device.convolution.at(x.channels) * device.convolution_plane.at(x.plane) *
                 (x.strided ? device.convolution_strided : 1);
  return flops / (device.peak(usual_precision(options.precision)) * share) + device.launch_seconds;
}

void add_again(RecomputeModes modes, double seconds, UnitTime& t) {
  for (size_t mode = 0; modes != 0 && mode < kRecomputeModes; ++mode) {
    if (modes & mode_bit(static_cast<RecomputeMode>(mode))) t.again[mode] += seconds;
  }
}

enum class Part { kForward, kInputGradient, kWeightGradient };

// How a unit's products that the tensor axis divides go beside its collectives (overlap_products.h): with sums that are
// scattered all of them, behind gathers, too; else those that a sum is completed of.
struct RowParts {
  double count = 1;
  bool scattered = false;

  bool cuts(const MatrixWork& x, Part part) const {
    return count > 1 && part != Part::kWeightGradient && x.scaled == 'm' && (scattered || x.split == 'k');
  }
  // Elements that are put together or taken apart: what a rank has of the operand or the result, and of backward's what
  // was gathered, which gradients of weights read whole. Forward's stay in parts from product to product, but at
  // attention.
  double copied(const MatrixWork& x, Part part) const {
    if (scattered && part == Part::kForward) return 0;
    return x.m * (x.split == 'n' ? x.n : x.k) + (x.split == 'n' ? x.m * x.k : 0);
  }
  double copied(const AttentionWork& a) const {
    return scattered && a.split ? 2 * (a.heads + a.key_heads) * a.queries * a.head_size : 0;
  }
};

double matrices(const std::vector<MatrixWork>& list, Part part, const RowParts& rows, const Workload& w,
                const DeviceProfile& device, const ComputeOptions& options, const Share& share, double head_ranks,
                UnitTime& t) {
  double sum = 0;
  for (MatrixWork x : list) {
    double* sizes[] = {&x.batch, &x.m, &x.n, &x.k};
    auto size = [&](char letter) -> double& {
      return *sizes[letter == 'b' ? 0 : letter == 'm' ? 1 : letter == 'n' ? 2 : 3];
    };
    size(x.scaled) *= share.samples;
    if (w.sequence > 1) size(x.scaled) /= share.context;
    if (x.split) size(x.split) = padded_part(size(x.split), x.of_heads && head_ranks > 1 ? head_ranks : share.tensor);
    // Experts stay with their ranks; the tokens of all ranks of the axis come to them.
    if (x.expert && x.scaled != 'b') x.batch /= share.expert, size(x.scaled) *= share.expert;
    bool windows = x.channels > 0 && !device.convolution.points.empty();
    const bool is_divided = share.tensor > 1 && x.split && !x.expert && !windows;
    const double parts = is_divided && rows.cuts(x, part) ? rows.count : 1;
    double seconds = x.count * parts *
                     (windows ? convolution_time(device, x, options)
                              : matrix_time(device, x.fp8 ? options.precision : usual_precision(options.precision),
                                            x.batch, x.m / parts, x.n, x.k, options.element_bytes()));
    if (part == Part::kForward && parts > 1) t.beside_forward += seconds;
    if (part != Part::kForward && is_divided && (parts > 1 || part == Part::kWeightGradient))
      t.beside_backward += seconds;
    if (const double copied = parts > 1 ? rows.copied(x, part) : 0; copied > 0)
      seconds += x.count * memory_time(device, 2 * copied * options.element_bytes(), parts);
    // The weight is rounded anew for each run: two bytes in, one out.
    if (x.fp8 && x.scaled == 'm') seconds += x.count * memory_time(device, 3 * x.k * x.n, 1);
    sum += seconds;
    add_again(x.again, seconds, t);
  }
  return sum;
}

}  // namespace

double padded_part(double size, double parts) {
  if (parts <= 1) return size;
  return size >= parts ? std::ceil(size / parts - 1e-9) : std::max(size / parts, 1.0);
}

double matrix_time(const DeviceProfile& device, Precision precision, double batch, double m, double n, double k,
                   double element_bytes) {
  double best = -1;
  double p = device.processors;
  for (const MatrixTile& tile : device.tiles) {
    double tiles = std::ceil(batch) * std::ceil(m / tile.m) * std::ceil(n / tile.n), length = k;
    if (tiles < p / 2 && k > 1024) {  // k itself is split
      double parts = std::min(std::floor(p / tiles), std::floor(k / 512));
      tiles *= parts, length /= parts;
    }
    double waves = std::ceil(tiles / p);
    double seconds = waves * p * 2 * tile.m * tile.n * length / (device.peak(precision) * tile.relative);
    if (best < 0 || seconds < best) best = seconds;
  }
  if (best < 0) best = 2 * batch * m * n * k / device.peak(precision);
  best /= device.matrix.at(k) * device.matrix_rows.at(m) * device.matrix_columns.at(n);
  double bytes = batch * (m * k + k * n + m * n) * element_bytes;
  double moved = bytes / (device.bandwidth * device.memory.at(bytes));
  return std::max(best, moved) + device.launch_seconds;
}

double memory_time(const DeviceProfile& device, double bytes, double kernels) {
  if (bytes <= 0) return kernels * device.launch_seconds;
  double each = bytes / std::max(kernels, 1.0);
  return bytes / (device.bandwidth * device.memory.at(each)) + kernels * device.launch_seconds;
}

namespace {

// What the context axis finds to divide instead of positions: heads of keys, heads of queries for each, samples.
std::array<int64_t, 3> instead_of_positions(const AttentionWork& attention, const Share& share) {
  const double tensor = attention.split ? share.tensor : 1;
  const int64_t key_heads = static_cast<int64_t>(std::max(1.0, attention.key_heads / tensor)),
                heads = static_cast<int64_t>(std::max(1.0, attention.heads / tensor));
  return {key_heads, heads / key_heads, std::max<int64_t>(1, static_cast<int64_t>(share.samples))};
}

}  // namespace

bool exchanges_heads(const AttentionWork& attention, const Share& share) {
  const auto sizes = instead_of_positions(attention, share);
  const auto ranks = static_cast<int64_t>(share.context);
  if (attention.full_share < 1) return cut_over(ranks, {sizes.begin(), sizes.end()}).has_value();
  const double queries = attention.heads * attention.queries, keys = attention.key_heads * attention.keys;
  return (sizes[0] % ranks == 0 || sizes[2] % ranks == 0) && queries + keys < share.context * keys;
}

double keys_on_rank(const AttentionWork& attention, const Share& share) {
  if (share.context == 1 || !exchanges_heads(attention, share)) return share.context;
  const auto [key_heads, queries, samples] = instead_of_positions(attention, share);
  const auto ranks = static_cast<int64_t>(share.context);
  if (key_heads % ranks == 0 || samples % ranks == 0) return 1;
  if (queries % ranks == 0) return share.context;
  return static_cast<double>(std::gcd(ranks / std::gcd(ranks, key_heads), queries));
}

UnitTime unit_time(const UnitWork& unit, const Workload& w, const DeviceProfile& device, const ComputeOptions& options,
                   const Share& share) {
  UnitTime t;
  const SoftwareProfile& software = device.software;
  double positions = share.samples / (w.sequence > 1 ? share.context : 1);
  const RowParts rows{share.row_parts, share.sequence_parallel && unit.sequence};
  const double head_ranks = unit.head_ranks(share.tensor);
  t.forward = matrices(unit.matrices, Part::kForward, rows, w, device, options, share, head_ranks, t);
  t.input_gradient =
      matrices(unit.input_gradients, Part::kInputGradient, rows, w, device, options, share, head_ranks, t);
  t.weight_gradient =
      matrices(unit.weight_gradients, Part::kWeightGradient, rows, w, device, options, share, head_ranks, t);
  double rate = device.peak(usual_precision(options.precision));
  for (const AttentionWork& a : unit.attention) {
    double part = positions * a.count / a.ranks(share.tensor);
    double forward, backward;
    if (options.flash) {
      double e = device.attention_flash.at(a.head_size) * (exchanges_heads(a, share) ? 1 : a.full_share);
      forward = a.forward_flops * part / (rate * e);
      backward = a.backward_flops * part / (rate * e * device.attention_backward);
    } else {  // the whole square is computed, and its scores are written and read
      // Matrix units read rows in 16 bytes; libraries leave them aside for heads of other sizes.
      bool aligned = std::fmod(a.head_size * options.element_bytes(), 16) == 0;
      double e = device.attention_math.at(a.head_size) * (aligned ? 1 : device.misaligned);
      bool fused = software.fused_softmax_keys == 0 || a.keys <= software.fused_softmax_keys;
      double elements = fused ? software.math_score_traffic : software.unfused_score_traffic;
      double scores = a.heads * a.queries * a.keys * part * options.element_bytes() * elements;
      double moved = scores / (device.bandwidth * device.memory.at(scores));
      forward = a.forward_flops / a.full_share * part / (rate * e) + moved;
      backward = 2 * a.forward_flops / a.full_share * part / (rate * e) + 1.5 * moved;
    }
    t.forward += forward + device.launch_seconds;
    if (const double copied = rows.count > 1 ? rows.copied(a) : 0; copied > 0)
      t.forward += memory_time(device, 2 * copied * part * options.element_bytes(), 4 * rows.count);
    t.attention += forward;
    add_again(a.again, forward + device.launch_seconds, t);
    t.input_gradient += backward + device.launch_seconds;
  }
  double whole = share.sequence_parallel && unit.sequence ? 1 / share.tensor : 1;
  bool mixed = options.element_bytes() < 4;
  auto traffic = [&](const TensorParts& fused, const TensorParts& rows, double composed_bytes) {
    auto here = [&](const TensorParts& p) { return p[0] / share.tensor + p[1] * whole; };
    double bytes = (here(fused) + here(rows) * (share.expert - 1) + 2 * here(unit.copied) * software.copies) *
                       options.element_bytes() +
                   (mixed ? here(unit.composed) * composed_bytes : 0);
    return bytes * positions * software.memory_traffic;
  };
  const double moved =
      memory_time(device, traffic(unit.forward_traffic, unit.rows_forward_traffic, software.composed_forward_bytes),
                  unit.forward_kernels) +
      software.kernel_seconds * unit.forward_kernels;
  t.forward += moved;
  for (size_t mode = 0; mode < kRecomputeModes; ++mode) t.again[mode] += unit.again_traffic[mode] * moved;
  t.input_gradient +=
      memory_time(device, traffic(unit.backward_traffic, unit.rows_backward_traffic, software.composed_backward_bytes),
                  unit.backward_kernels);
  t.input_gradient += software.kernel_seconds * unit.backward_kernels;
  return t;
}

}  // namespace partita
