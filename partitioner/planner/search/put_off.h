// Layouts that are looked at once it is known what they have to beat.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "partitioner/layout/layout.h"

namespace partita {

class PutOff {
 public:
  // `seconds`: what it takes at least.
  void add(double seconds, Layout layout) { all_.emplace_back(seconds, std::move(layout)); }

  // Calls look(seconds, layout) of each that may be faster than `fastest`, which may fall meanwhile, the fastest first;
  // the rest stays.
  template <typename Look>
  void take_up(const double& fastest, Look look) {
    std::vector<std::pair<double, Layout>> all = std::exchange(all_, {});
    std::ranges::stable_sort(all, {}, [](const auto& x) { return x.first; });
    for (auto& [seconds, layout] : all) {
      if (seconds < fastest) {
        look(seconds, layout);
      } else {
        add(seconds, std::move(layout));
      }
    }
  }

 private:
  std::vector<std::pair<double, Layout>> all_;
};

}  // namespace partita
