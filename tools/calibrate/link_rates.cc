// Bandwidth, latency and half_bytes are found by coordinate descent: each is multiplied or divided by a factor that
// shrinks, as long as the squared logarithms of predicted over measured fall.
#include "tools/calibrate/link_rates.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/status.h"
#include "partitioner/planner/rates/collective_time.h"
#include "tools/calibrate/bound_kernel.h"

namespace partita {
namespace {

namespace rt = runtime;

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
rt::CollectiveOp operation(CollectiveKind kind, int64_t bytes, int rank, int ranks, float* buffer) {
  rt::CollectiveOp op;
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
      op.to = (rank + 1) % ranks, op.from = (rank + ranks - 1) % ranks;
      break;
    default:
      op.kind = rt::CollectiveKind::kAllReduce, op.count = count;
  }
  return op;
}

double predicted(const LinkProfile& link, int ranks, const Sample& s) {
  DeviceGroup group;
  group.devices_per_node = ranks;
  group.links = {{link, ranks}};
  return collective_time(group, s.kind, {s.kind == CollectiveKind::kSend ? 2 : ranks, 1}, s.bytes).seconds;
}

double misfit(const LinkProfile& link, int ranks, const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) {
    double e = std::log(predicted(link, ranks, s) / s.seconds);
    sum += e * e;
  }
  return sum;
}

LinkProfile fit(int ranks, const std::vector<Sample>& samples) {
  LinkProfile link;
  link.bandwidth = 5e9, link.latency = 1e-5, link.half_bytes = 1e4;
  double best = misfit(link, ranks, samples);
  for (double factor = 4; factor > 1.005;) {
    bool moved = false;
    for (double LinkProfile::*member : {&LinkProfile::bandwidth, &LinkProfile::latency, &LinkProfile::half_bytes}) {
      for (double by : {factor, 1 / factor}) {
        LinkProfile next = link;
        next.*member *= by;
        double e = misfit(next, ranks, samples);
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
absl::StatusOr<double> wait_seconds(RankTeam team, const LinkProfile& link, int64_t size) {
  constexpr int64_t kRepeats = 3, kBytes = 4 << 10;
  team.round_seconds = std::min(0.15, 50 * team.round_seconds), team.most_seconds *= 4;
  const runtime::Step product = library_step("matmul", DType::kF32, {{size, size}, {size, size}}, {{size, size}});
  double usual[2];
  for (bool meets : {false, true}) {
    PARTITA_ASSIGN_OR_RETURN(Timing t, team.time([&](const RankPlace& place) -> absl::StatusOr<RankWork> {
      PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(product, place));
      PARTITA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::make(place, kBytes));
      rt::CollectiveOp op = operation(CollectiveKind::kAllReduce, kBytes, place.rank, team.ranks, buffer.at);
      return RankWork([kernel, buffer, op, communicator = place.communicator, meets] {
        for (int64_t k = 0; k < kRepeats; ++k) kernel->run();
        return meets ? communicator->run(op) : absl::OkStatus();
      });
    }));
    usual[meets] = t.seconds * (1 + t.noise);
  }
  const double alone = predicted(link, team.ranks, {CollectiveKind::kAllReduce, kBytes, 0});
  return std::max(0.0, usual[1] - usual[0] - alone);
}

}  // namespace

absl::StatusOr<LinkFit> measure_links(const RankTeam& team, const LinkSizes& sizes) {
  LinkFit out;
  std::vector<Sample> samples;
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                              CollectiveKind::kSend}) {
    for (int64_t bytes : sizes.bytes) {
      PARTITA_ASSIGN_OR_RETURN(Timing t, team.time([&](const RankPlace& place) -> absl::StatusOr<RankWork> {
        PARTITA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::make(place, bytes));
        rt::CollectiveOp op = operation(kind, bytes, place.rank, team.ranks, buffer.at);
        return RankWork([buffer, op, communicator = place.communicator] { return communicator->run(op); });
      }));
      samples.push_back({kind, static_cast<double>(bytes), t.seconds});
      out.noise += t.noise;
    }
  }
  out.noise /= static_cast<double>(samples.size());
  out.link = fit(team.ranks, samples);
  for (const Sample& s : samples)
    out.error += std::abs(predicted(out.link, team.ranks, s) / s.seconds - 1) / static_cast<double>(samples.size());
  PARTITA_ASSIGN_OR_RETURN(out.link.wait_seconds, wait_seconds(team, out.link, sizes.product));
  return out;
}

}  // namespace partita
