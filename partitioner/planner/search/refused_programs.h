// Layouts whose programs the compiler has allocated and that do not fit, and what they say of others. Allocating takes
// seconds for large models, so that what is unlikely to fit is not tried.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {

// A layout and what the cost model counts of its memory.
struct PricedLayout {
  double seconds;
  double left;   // bytes on the fullest stage; negative where it does not fit
  double share;  // of what that stage has that is taken
  Layout layout;
};

PricedLayout priced(double seconds, const Prediction& prediction, Layout layout);

// Holds what its programs were allocated, in bytes of each stage beside the reserve, against the devices: that
// says whether the layout fits, whatever was counted.
void hold_program(Prediction& prediction, std::vector<double> bytes);

// Whether a program is not what was counted at all: many times the count, and what the device has. The graph spells
// something out that the cost model takes for one op, which no other layout would mend.
bool is_another_program(const Prediction& prediction, const std::vector<double>& bytes);

class RefusedPrograms {
 public:
  explicit RefusedPrograms(const Problem& problem) : problem_(problem) {}

  // What hold_program() has found not to fit.
  void add(const Layout& layout, const Prediction& prediction);
  // What the compiler does not take.
  void add(const Layout& layout);

  // Whether it is one of them, or its program would not fit either, judged by them.
  bool covers(const PricedLayout& x) const;
  // Bytes that a layout must leave by the count, of `room`, so that it is not judged so; 0 where none like it was
  // refused.
  double beyond(const Layout& layout, double room) const;

 private:
  using Activations = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, RecomputeMode, PipelineSchedule, int64_t,
                                 bool, std::vector<Layout::StageAxes>, bool>;
  using Division = std::tuple<bool, bool, bool, bool, RecomputeMode, bool>;
  struct Refused {
    Layout layout;
    bool allocated = false;
    double beyond = 0;       // bytes of its program beyond the count
    bool one_batch = false;  // of one micro-batch, so that it sums up no gradients
  };
  static Activations activations_kind(const Layout& l);
  static Division division_kind(const Layout& l);

  const Problem& problem_;
  std::vector<Refused> all_;
  std::map<Division, std::vector<double>> ratios_;  // of programs' bytes to the count
};

}  // namespace partita
