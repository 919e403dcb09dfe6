// Bandwidth, latency and half_bytes are found by coordinate descent: each is multiplied or divided by a factor that
// shrinks, as long as the squared logarithms of predicted over measured fall.
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

constexpr double kLongEnough = 0.25;  // seconds of a collective, next to which all but bandwidth is small

struct Sample {
  CollectiveKind kind;
  double bytes, seconds;
};

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

double predicted(const JoinedRanks& ranks, const LinkProfile& link, const Sample& s) {
  DeviceGroup group = ranks.group;
  group.links.back().link = link;
  const int64_t members = s.kind == CollectiveKind::kSend ? 2 : ranks.axis.size;
  return collective_time(group, s.kind, {members, ranks.axis.stride}, s.bytes).seconds;
}

double misfit(const JoinedRanks& ranks, const LinkProfile& link, const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) {
    double e = std::log(predicted(ranks, link, s) / s.seconds);
    sum += e * e;
  }
  return sum;
}

double mean_error(const JoinedRanks& ranks, const LinkProfile& link, const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) sum += std::abs(predicted(ranks, link, s) / s.seconds - 1);
  return sum / static_cast<double>(samples.size());
}

LinkProfile fit(const JoinedRanks& ranks, const std::vector<Sample>& samples) {
  LinkProfile link;
  link.bandwidth = 5e9, link.latency = 1e-5, link.half_bytes = 1e4;
  double best = misfit(ranks, link, samples);
  for (double factor = 4; factor > 1.005;) {
    bool moved = false;
    for (double LinkProfile::*member : {&LinkProfile::bandwidth, &LinkProfile::latency, &LinkProfile::half_bytes}) {
      for (double by : {factor, 1 / factor}) {
        LinkProfile next = link;
        next.*member *= by;
        double e = misfit(ranks, next, samples);
        if (e < best) best = e, link = next, moved = true;
      }
    }
    if (!moved) factor = std::sqrt(factor);
  }
  return link;
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
  const double alone = predicted(ranks, link, {CollectiveKind::kAllReduce, kBytes, 0});
  return std::max(0.0, usual[1] - usual[0] - alone);
}

absl::StatusOr<std::vector<Sample>> take_samples(const JoinedRanks& ranks, const LinkSizes& sizes, double* noise) {
  std::vector<Sample> samples;
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
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Sample> samples, take_samples(ranks, sizes, &out.noise));
  out.link = fit(ranks, samples);
  out.error = mean_error(ranks, out.link, samples);
  PARTITA_ASSIGN_OR_RETURN(out.link.wait_seconds, wait_seconds(ranks, out.link, sizes.product));
  return out;
}

absl::StatusOr<double> prediction_error(const JoinedRanks& ranks, const LinkSizes& sizes) {
  double noise = 0;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Sample> samples, take_samples(ranks, sizes, &noise));
  LinkProfile link = ranks.group.links.back().link;
  link.wait_seconds = 0;  // ranks that are measured do not work in between
  return mean_error(ranks, link, samples);
}

}  // namespace partita
