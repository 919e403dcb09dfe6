#include "runtime/bind/host_topology.h"

#include <dlfcn.h>
#include <hwloc.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr const char* kLibrary = "libhwloc.so.15";        // of every hwloc 2
constexpr unsigned kDisplay = 0x03, kAccelerator = 0x12;  // PCI classes

// What is used of hwloc.
struct Hwloc {
  decltype(&::hwloc_topology_init) init = nullptr;
  decltype(&::hwloc_topology_destroy) destroy = nullptr;
  decltype(&::hwloc_topology_set_type_filter) filter = nullptr;
  decltype(&::hwloc_topology_load) load = nullptr;
  decltype(&::hwloc_get_type_depth) depth = nullptr;
  decltype(&::hwloc_get_obj_by_depth) object = nullptr;
  decltype(&::hwloc_bitmap_next) next = nullptr;
  decltype(&::hwloc_bitmap_isset) has = nullptr;
};

absl::StatusOr<Hwloc> load_hwloc() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return absl::FailedPreconditionError(cat("there is no hwloc on this host (Debian: libhwloc15): ", ::dlerror()));
  Hwloc hwloc;
  bool whole = true;
  auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    whole &= function != nullptr;
  };
  take(hwloc.init, "hwloc_topology_init");
  take(hwloc.destroy, "hwloc_topology_destroy");
  take(hwloc.filter, "hwloc_topology_set_type_filter");
  take(hwloc.load, "hwloc_topology_load");
  take(hwloc.depth, "hwloc_get_type_depth");
  take(hwloc.object, "hwloc_get_obj_by_depth");
  take(hwloc.next, "hwloc_bitmap_next");
  take(hwloc.has, "hwloc_bitmap_isset");
  if (!whole) return absl::FailedPreconditionError(cat("this host's ", kLibrary, " lacks functions of hwloc 2"));
  return hwloc;
}

class Reader {
 public:
  Reader(const Hwloc& hwloc, hwloc_topology_t topology) : hwloc_(hwloc), topology_(topology) {}

  HostTopology read() const {
    HostTopology host;
    // A container may hide which hardware threads share a core.
    const int depth = hwloc_.depth(topology_, HWLOC_OBJ_CORE);
    each(depth >= 0 ? depth : hwloc_.depth(topology_, HWLOC_OBJ_PU), [&](const hwloc_obj& core) {
      host.cores.push_back({processors(core.cpuset), -1});
    });
    each(HWLOC_TYPE_DEPTH_NUMANODE, [&](const hwloc_obj& node) {
      // Memory of other kinds is a node, too, and may have the same cores: theirs is the first.
      for (HostTopology::Core& core : host.cores) {
        if (core.node < 0 && hwloc_.has(node.cpuset, static_cast<unsigned>(core.processors[0])) != 0)
          core.node = static_cast<int>(node.os_index);
      }
    });
    each(HWLOC_TYPE_DEPTH_PCI_DEVICE, [&](const hwloc_obj& device) {
      const auto& at = device.attr->pcidev;
      if (at.class_id >> 8 != kDisplay && at.class_id >> 8 != kAccelerator) return;
      const hwloc_obj* above = &device;
      while (above->cpuset == nullptr) above = above->parent;
      host.cards.push_back({card_address(at.domain, at.bus, at.dev), processors(above->cpuset)});
    });
    return host;
  }

 private:
  template <typename Visit>
  void each(int depth, const Visit& visit) const {
    for (unsigned k = 0;; ++k) {
      const hwloc_obj* object = hwloc_.object(topology_, depth, k);
      if (object == nullptr) return;
      visit(*object);
    }
  }

  std::vector<int> processors(hwloc_const_bitmap_t set) const {
    std::vector<int> list;
    for (int p = hwloc_.next(set, -1); p >= 0; p = hwloc_.next(set, p)) list.push_back(p);
    return list;
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_;
};

}  // namespace

absl::StatusOr<HostTopology> read_topology(bool cards) {
  static const absl::StatusOr<Hwloc> hwloc = load_hwloc();
  if (!hwloc.ok()) return hwloc.status();
  hwloc_topology_t made = nullptr;
  if (hwloc->init(&made) != 0) return absl::FailedPreconditionError("hwloc does not start");
  const std::unique_ptr<hwloc_topology, decltype(hwloc->destroy)> topology(made, hwloc->destroy);
  // With bridges alone kept out, what lies behind them stays.
  if (cards) hwloc->filter(made, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc->load(made) != 0) return absl::FailedPreconditionError("hwloc cannot tell what this host has");
  return Reader(*hwloc, made).read();
}

}  // namespace partita::runtime
