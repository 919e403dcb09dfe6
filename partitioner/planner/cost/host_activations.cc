#include "partitioner/planner/cost/host_activations.h"

#include <algorithm>

namespace partita {

HostCopies HostCopies::of(double bytes, const DeviceProfile& device, double forward, double backward) {
  const double each = bytes / device.host_bandwidth;
  return {each, std::max(0.0, each - forward), std::max(0.0, each - backward), bytes / device.bandwidth};
}

void HostCopies::add(const HostCopies& c, double times) {
  each_way += times * c.each_way, waited_down += times * c.waited_down, waited_up += times * c.waited_up;
  slowed += times * c.slowed;
}

void HostCopies::add_to(PassTimes& forward, PassTimes& backward) const {
  using enum TimeKind;
  forward[kToHost] += waited_down, forward.hidden_to_host += each_way - waited_down, forward[kSlowed] += slowed;
  backward[kFromHost] += waited_up, backward.hidden_from_host += each_way - waited_up, backward[kSlowed] += slowed;
}

}  // namespace partita
