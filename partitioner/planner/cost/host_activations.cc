#include "partitioner/planner/cost/host_activations.h"

#include <algorithm>

namespace partita {

HostCopies::Copy HostCopies::Copy::of(double bytes, const DeviceProfile& device, double beside) {
  const double all = bytes / device.host_bandwidth;
  return {all, std::max(0.0, all - beside), bytes / device.bandwidth};
}

void HostCopies::Copy::add(const Copy& c, double times) {
  all += times * c.all, waited += times * c.waited, slowed += times * c.slowed;
}

void HostCopies::Copy::add_to(PassTimes& pass, TimeKind kind, double PassTimes::*hidden) const {
  pass[kind] += waited, pass.*hidden += all - waited, pass[TimeKind::kSlowed] += slowed;
}

HostCopies HostCopies::of(const KeptBytes& kept, const DeviceProfile& device, double forward, double backward,
                          double weight) {
  return {Copy::of(kept.on_host, device, forward), Copy::of(kept.for_backward, device, backward),
          Copy::of(kept.for_weights, device, weight)};
}

double HostCopies::added() const {
  double seconds = 0;
  for (const Copy& c : {down, up, up_again}) seconds += c.waited + c.slowed;
  return seconds;
}

void HostCopies::add(const HostCopies& c, double times) {
  down.add(c.down, times), up.add(c.up, times), up_again.add(c.up_again, times);
}

void HostCopies::add_to(ChunkTimes& chunk) const {
  down.add_to(chunk.forward, TimeKind::kToHost, &PassTimes::hidden_to_host);
  up.add_to(chunk.backward, TimeKind::kFromHost, &PassTimes::hidden_from_host);
  up_again.add_to(chunk.weight, TimeKind::kFromHost, &PassTimes::hidden_from_host);
}

}  // namespace partita
