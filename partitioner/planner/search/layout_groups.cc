#include "partitioner/planner/search/layout_groups.h"

#include <algorithm>

#include "base/cat.h"
#include "partitioner/planner/search/layout_order.h"
#include "partitioner/planner/search/waiting_less.h"

namespace partita {
namespace {

class Groups {
 public:
  Groups(CostModel& model, const Space& space, const std::function<void(std::string)>& refuse)
      : model_(model), problem_(model.problem()), space_(space), refuse_(refuse) {}

  std::vector<LayoutGroup> run() && {
    int64_t devices = problem_.devices();
    for (int64_t tensor : space_.tensor)
      for (int64_t pipeline : space_.pipeline)
        for (int64_t context : space_.context)
          for (int64_t expert : space_.expert) {
            int64_t inner = tensor * pipeline * context * expert;
            const bool differ = !space_.stages.empty();  // how many devices they take is checked where they are pinned
            if (!differ &&
                (inner > devices || devices % inner != 0 || (space_.data && *space_.data != devices / inner))) {
              refuse_(cat("tensor ", tensor, " x pipeline ", pipeline, " x context ", context, " x expert ", expert,
                          space_.data ? cat(" x data ", *space_.data) : "", " does not make ", devices, " devices"));
              continue;
            }
            Layout l;
            l.tensor = tensor, l.pipeline = pipeline, l.context = context, l.expert = expert;
            l.data = differ ? space_.data.value_or(1) : devices / inner;
            l.stages = space_.stages, l.cut_names = space_.cut_names;
            l.recompute_blocks = space_.recompute_blocks, l.overlap_micro_batches = space_.overlap_micro_batches;
            l.overlap_products = space_.overlap_products;
            add_groups(l);
            if (take_turns(problem_, space_, l)) add_groups(l);
          }
    std::sort(groups_.begin(), groups_.end(),
              [](const LayoutGroup& a, const LayoutGroup& b) { return a.bound < b.bound; });
    return std::move(groups_);
  }

 private:
  void add_groups(Layout l) {
    const Workload& w = *problem_.workload;
    const bool tensor = any_stage(l, [](const Layout& s) { return s.tensor > 1; });
    for (int64_t micro : space_.micro_batch) {
      l.micro_batch = micro;
      if (std::string why = invalid(problem_, l); !why.empty()) {
        refuse_(std::move(why));
        continue;
      }
      if (w.samples < static_cast<double>(micro) && w.whole_batches) continue;
      for (bool sequence : space_.sequence_parallel) {
        if (!tensor && sequence && space_.sequence_parallel.size() > 1) continue;
        for (RecomputeMode recompute : space_.recompute) {
          if (space_.recompute_by_block && recompute != RecomputeMode::kNone)
            continue;  // what does not fit asks for it
          l.sequence_parallel = sequence && tensor, l.recompute = recompute;
          groups_.push_back({model_.lower_bound(l), l});
        }
      }
    }
  }

  CostModel& model_;
  const Problem& problem_;
  const Space& space_;
  const std::function<void(std::string)>& refuse_;
  std::vector<LayoutGroup> groups_;
};

}  // namespace

std::vector<LayoutGroup> layout_groups(CostModel& model, const Space& space,
                                       const std::function<void(std::string)>& refuse) {
  return Groups(model, space, refuse).run();
}

}  // namespace partita
