// Bandwidth is what large messages say: how much longer the largest one of a kind takes than each smaller one, which is
// the same whatever a message costs beside its bytes, and where shaping lets a burst through at once.
//
//   4 kB 0.0001 s | 64 kB 0.018 s | 1 MB 0.33 s: of the last two 0.31 s for 0.98 MB, of the first and last as much
//
// The middle one of all those slopes is taken, so that a sample which something else slowed down does no harm. What
// messages cost beside (latency, half_bytes) is what the small ones then need: by coordinate descent each is multiplied
// or divided by a factor that shrinks, as long as relative errors fall, of which large ones count less than squared.
#include "tools/calibrate/link_rates.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/status.h"
#include "tools/calibrate/bound_kernel.h"

namespace partita {
namespace {

namespace rt = runtime;

constexpr double kUsualError = 0.1;   // relative; larger ones count in proportion, smaller ones squared
constexpr double kLongEnough = 0.15;  // seconds of a collective, next to which all but bandwidth is small

// Room for what a rank sends and receives.
struct Buffer {
  std::shared_ptr<RankMemory> memory = std::make_shared<RankMemory>();
  float* at = nullptr;

  static absl::StatusOr<Buffer> make(const RankPlace& place, int64_t bytes) {
    Buffer b;
    PARTITA_ASSIGN_OR_RETURN(std::byte * at, b.memory->numbers(place, DType::kF32, bytes / 2));
    b.at = reinterpret_cast<float*>(at);
    return b;
  }
};

// The operation on `bytes` of the whole value, in place where it can be.
rt::CollectiveOp operation(CollectiveKind kind, int64_t bytes, const RankPlace& place, int64_t ranks, float* buffer) {
  const int rank = place.rank, last = static_cast<int>(ranks) - 1;
  rt::CollectiveOp op;
  op.group = place.group;
  op.label = "calibration";
  int64_t count = bytes / 4;
  op.output = buffer;
  switch (kind) {
    case CollectiveKind::kAllGather:
      op.kind = rt::CollectiveKind::kAllGather, op.count = count / ranks, op.input = buffer + rank * op.count;
      break;
    case CollectiveKind::kReduceScatter:
      op.kind = rt::CollectiveKind::kReduceScatter, op.count = count / ranks, op.input = buffer;
      op.output = buffer + rank * op.count;
      break;
    case CollectiveKind::kSend:  // each to the next one and from the one before
      op.kind = rt::CollectiveKind::kPermute, op.count = count, op.input = buffer, op.output = buffer + count;
      op.to = rank == last ? 0 : rank + 1, op.from = rank == 0 ? last : rank - 1;
      break;
    default:
      op.kind = rt::CollectiveKind::kAllReduce, op.count = count;
  }
  return op;
}

double misfit(const DeviceGroup& group, RankAxis axis, const LinkProfile& link,
              const std::vector<LinkSample>& samples) {
  double sum = 0;
  for (const LinkSample& s : samples)
    sum += std::hypot(1, std::log(predicted(group, axis, link, s) / s.seconds) / kUsualError) - 1;
  return sum;
}

double middle(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  return (list[(list.size() - 1) / 2] + list[list.size() / 2]) / 2;
}

// Bytes a second, from the largest message of each kind and each smaller one; from single sizes where there are no two.
double bandwidth_of(const DeviceGroup& group, RankAxis axis, const std::vector<LinkSample>& samples) {
  LinkProfile unit;
  unit.bandwidth = 1;
  std::vector<double> slopes, singles;
  for (const LinkSample& large : samples) {
    const double of_large = predicted(group, axis, unit, large);
    singles.push_back(of_large / large.seconds);
    auto same = [&](const LinkSample& s) { return s.kind == large.kind; };
    if (std::any_of(samples.begin(), samples.end(),
                    [&](const LinkSample& s) { return same(s) && s.bytes > large.bytes; }))
      continue;
    for (const LinkSample& small : samples) {
      if (!same(small) || small.bytes >= large.bytes || small.seconds >= large.seconds) continue;
      slopes.push_back((of_large - predicted(group, axis, unit, small)) / (large.seconds - small.seconds));
    }
  }
  return middle(slopes.empty() ? singles : slopes);
}

// The usual time of work that takes a core some milliseconds, then of that work and a small all-reduce: what is more,
// and not the all-reduce itself, is waiting. Work is that of steps between collectives in training; waits hardly depend
// on it.
absl::StatusOr<double> wait_seconds(const JoinedRanks& ranks, const LinkProfile& link, int64_t size) {
  constexpr int64_t kRepeats = 3, kBytes = 4 << 10;
  TimingLimits limits = ranks.limits;
  limits.round_seconds = std::min(0.15, 50 * limits.round_seconds), limits.most_seconds *= 4;
  const runtime::Step product = library_step("matmul", DType::kF32, {{size, size}, {size, size}}, {{size, size}});
  double usual[2];
  for (bool meets : {false, true}) {
    auto prepare = [&](const RankPlace& place) -> absl::StatusOr<RankWork> {
      PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(product, place));
      PARTITA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::make(place, kBytes));
      rt::CollectiveOp op = operation(CollectiveKind::kAllReduce, kBytes, place, ranks.axis.size, buffer.at);
      return RankWork([kernel, buffer, op, communicator = place.communicator, meets] {
        for (int64_t k = 0; k < kRepeats; ++k) kernel->run();
        return meets ? communicator->run(op) : absl::OkStatus();
      });
    };
    PARTITA_ASSIGN_OR_RETURN(Timing t, ranks.time(prepare, limits));
    usual[meets] = t.seconds * (1 + t.noise);
  }
  const double alone = predicted(ranks.group, ranks.axis, link, {CollectiveKind::kAllReduce, kBytes, 0});
  return std::max(0.0, usual[1] - usual[0] - alone);
}

absl::StatusOr<std::vector<LinkSample>> take_samples(const JoinedRanks& ranks, const LinkSizes& sizes, double* noise) {
  std::vector<LinkSample> samples;
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                              CollectiveKind::kSend}) {
    for (int64_t bytes : sizes.bytes) {
      auto prepare = [&](const RankPlace& place) -> absl::StatusOr<RankWork> {
        PARTITA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::make(place, bytes));
        rt::CollectiveOp op = operation(kind, bytes, place, ranks.axis.size, buffer.at);
        PARTITA_RETURN_IF_ERROR(place.communicator->connect({&op, 1}));
        return RankWork([buffer, op, communicator = place.communicator] { return communicator->run(op); });
      };
      PARTITA_ASSIGN_OR_RETURN(Timing t, ranks.time(prepare, ranks.limits));
      samples.push_back({kind, static_cast<double>(bytes), t.seconds});
      *noise += t.noise;
      if (t.seconds > kLongEnough) break;  // the same on all ranks
    }
  }
  *noise /= static_cast<double>(samples.size());
  return samples;
}

}  // namespace

double predicted(const DeviceGroup& group, RankAxis axis, const LinkProfile& link, const LinkSample& s) {
  DeviceGroup with = group;
  with.links.back().link = link;
  const int64_t members = s.kind == CollectiveKind::kSend ? 2 : axis.size;
  return collective_time(with, s.kind, {members, axis.stride}, s.bytes).seconds;
}

double mean_error(const DeviceGroup& group, RankAxis axis, const LinkProfile& link,
                  const std::vector<LinkSample>& samples) {
  double sum = 0;
  for (const LinkSample& s : samples) sum += std::abs(predicted(group, axis, link, s) / s.seconds - 1);
  return sum / static_cast<double>(samples.size());
}

LinkProfile fit_link(const DeviceGroup& group, RankAxis axis, const std::vector<LinkSample>& samples) {
  LinkProfile link;
  link.bandwidth = bandwidth_of(group, axis, samples), link.latency = 1e-5, link.half_bytes = 1e4;
  double best = misfit(group, axis, link, samples);
  for (double factor = 4; factor > 1.005;) {
    bool moved = false;
    for (double LinkProfile::*member : {&LinkProfile::latency, &LinkProfile::half_bytes}) {
      for (double by : {factor, 1 / factor}) {
        LinkProfile next = link;
        next.*member *= by;
        const double e = misfit(group, axis, next, samples);
        if (e < best) best = e, link = next, moved = true;
      }
    }
    if (!moved) factor = std::sqrt(factor);
  }
  return link;
}

JoinedRanks JoinedRanks::of(const RankTeam& team) {
  JoinedRanks ranks;
  ranks.group.devices_per_node = team.ranks;
  if (team.program != nullptr) ranks.group.device.host_update_rate = 1;  // no host: collectives are NCCL's
  ranks.group.links = {{{}, team.ranks}};
  ranks.axis = {team.ranks, 1};
  ranks.limits = team;
  ranks.time = [team](const PrepareRank& prepare, const TimingLimits& limits) {
    RankTeam limited = team;
    static_cast<TimingLimits&>(limited) = limits;
    return limited.time(prepare);
  };
  return ranks;
}

absl::StatusOr<LinkFit> measure_links(const JoinedRanks& ranks, const LinkSizes& sizes) {
  LinkFit out;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<LinkSample> samples, take_samples(ranks, sizes, &out.noise));
  out.link = fit_link(ranks.group, ranks.axis, samples);
  out.error = mean_error(ranks.group, ranks.axis, out.link, samples);
  PARTITA_ASSIGN_OR_RETURN(out.link.wait_seconds, wait_seconds(ranks, out.link, sizes.product));
  return out;
}

absl::StatusOr<double> prediction_error(const JoinedRanks& ranks, const LinkSizes& sizes) {
  double noise = 0;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<LinkSample> samples, take_samples(ranks, sizes, &noise));
  LinkProfile link = ranks.group.links.back().link;
  link.wait_seconds = 0;  // ranks that are measured do not work in between
  return mean_error(ranks.group, ranks.axis, link, samples);
}

}  // namespace partita
