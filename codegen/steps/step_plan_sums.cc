// What micro-batches have added up is summed over ranks beside the last of them: backward is cut where the last term of
// a sum has been added, and the sum starts there. Other micro-batches run the same parts one after the other. Of items
// b of backward, r of the reduce segment and starts s of its collectives:
//
//   b1 b2 b3 b4 r1 s1 r2 s2 update   becomes   b1 b2 | r1 s1 | b3 b4 | r2 s2 update
//
// A collective of what another one brings (sums in levels) starts a cut later than that one: it is not waited for at
// once. Nothing of backward reads what the reduce segment makes, so steps that stand between its own are as if they
// came after all of them.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "codegen/steps/step_planner.h"

namespace partita {

using runtime::StepKind;

// Items by their numbers: they stand in that order, and what the drafts of one read was made by items before it.
class StepPlanner::EarlySums {
 public:
  explicit EarlySums(const StepPlanner& planner) : planner_(planner), all_(planner.plan_.items.size()) {
    for (const Draft& d : planner.drafts_) add(d);
    find_places();
  }

  std::vector<Draft> order(std::vector<Draft> drafts) const {
    std::map<int, std::vector<std::pair<int, int>>> moved;  // behind an item of backward: level and item
    for (size_t k = 0; k < all_.size(); ++k) {
      if (all_[k].place != kStays) moved[all_[k].place].emplace_back(all_[k].level, static_cast<int>(k));
    }
    std::map<int, std::vector<Draft>> of_item;
    for (Draft& d : drafts) of_item[d.item].push_back(std::move(d));
    std::vector<Draft> ordered;
    const auto put = [&](int item) {
      for (Draft& d : of_item[item]) ordered.push_back(std::move(d));
    };
    for (size_t k = 0; k < all_.size(); ++k) {
      if (all_[k].place == kStays) put(static_cast<int>(k));
      const auto behind = moved.find(static_cast<int>(k));
      if (behind == moved.end()) continue;
      std::sort(behind->second.begin(), behind->second.end());
      for (const auto& [level, item] : behind->second) put(item);
    }
    return ordered;
  }

 private:
  static constexpr int kStays = INT_MAX;

  struct Item {
    std::set<int> from;    // items that make what it reads
    bool reduces = false;  // of the reduce segment
    bool starts = false;   // a collective
    int level = 0;         // collectives of the reduce segment before it, one after the other
    bool held = false;     // among the stages of a pipeline, or behind such: it keeps its place
    int ready = -1;        // the item of backward after which it may stand
    int place = kStays;    // the one after which it does
  };

  void add(const Draft& d) {
    Item& item = all_[static_cast<size_t>(d.item)];
    item.reduces = d.step.segment == Segment::kReduce;
    item.starts = d.step.kind == StepKind::kCollectiveStart;
    if (item.starts) {
      const std::vector<int64_t>& axes = planner_.graph_.nodes[d.step.node].attrs.ints("axes");
      item.held = d.step.outbox >= 0 || std::count(axes.begin(), axes.end(), planner_.options_.fusion.stage_axis) > 0;
    }
    if (d.step.segment == Segment::kBackward) last_ = ends_[d.step.phase] = d.item;
    for (size_t u = 0; u < d.uses.size(); ++u) {
      if (d.uses[u].absent) continue;
      if (static_cast<int>(u) >= d.step.inputs) {
        makers_[d.uses[u].id] = d.item;
      } else if (const auto at = makers_.find(d.uses[u].id); at != makers_.end() && at->second != d.item) {
        item.from.insert(at->second);
      }
    }
  }

  void find_places() {
    if (last_ < 0) return;
    for (Item& item : all_) {
      if (item.reduces) make_ready(item);
      if (item.reduces && item.starts && !item.held && item.level == 0)
        cuts_.insert(item.ready < 0 ? last_ : item.ready);
    }
    cuts_.insert(last_);
    for (Item& item : all_) {
      if (!item.reduces || item.held) continue;
      for (int k : item.from) {
        const Item& maker = all_[static_cast<size_t>(k)];
        if (maker.reduces) item.ready = std::max(item.ready, maker.starts ? next_cut(maker.place + 1) : maker.ready);
      }
      if (item.starts) item.place = next_cut(item.ready);
    }
    // What collectives read is made where the first of them starts.
    for (size_t k = all_.size(); k-- > 0;) {
      if (all_[k].place == kStays) continue;
      for (int from : all_[k].from) {
        Item& maker = all_[static_cast<size_t>(from)];
        if (maker.reduces && !maker.starts) maker.place = std::min(maker.place, all_[k].place);
      }
    }
  }

  void make_ready(Item& item) const {
    for (int k : item.from) {
      const Item& maker = all_[static_cast<size_t>(k)];
      const FusedItem& fused = planner_.plan_.items[static_cast<size_t>(k)];
      item.held = item.held || (maker.reduces && maker.held);
      if (maker.reduces) item.level = std::max(item.level, maker.level + (maker.starts ? 1 : 0));
      if (maker.reduces && !maker.starts) item.ready = std::max(item.ready, maker.ready);
      // What comes to backward is waited for at its end.
      if (fused.segment == Segment::kBackward)
        item.ready = std::max(item.ready, maker.starts ? ends_.at(fused.phase) : k);
    }
  }

  int next_cut(int from) const {
    const auto at = cuts_.lower_bound(from);
    return at == cuts_.end() ? last_ : *at;
  }

  const StepPlanner& planner_;
  std::vector<Item> all_;
  std::map<int, int> makers_;    // of values and temporaries
  std::map<int32_t, int> ends_;  // the last item of each phase of backward
  std::set<int> cuts_;           // items of backward
  int last_ = -1;                // item of backward
};

void StepPlanner::start_sums_early() {
  if (options_.micro_batches == 1 || options_.updates_each) return;
  const EarlySums sums(*this);
  drafts_ = sums.order(std::move(drafts_));
}

}  // namespace partita
