// What a search has priced and keeps: layouts that fit, those of which the compiler is to say, the nearest that do not.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/search/candidate.h"
#include "partitioner/planner/search/cut_names.h"
#include "partitioner/planner/search/layout_order.h"
#include "partitioner/planner/search/refused_programs.h"
#include "partitioner/planner/search/search.h"

namespace partita {

class Shortlist {
 public:
  static constexpr double kNever = 1e300;
  // Of the room, by which a layout may be over by the count for the compiler to be asked all the same.
  static constexpr double kCountError = 0.05;

  Shortlist(CostModel& model, const SearchOptions& options)
      : model_(model), problem_(model.problem()), options_(options), refusals_(problem_), names_(model) {}

  // Seconds of the fastest layout that fits and is not refused; kNever: none.
  const double& fastest() const { return fastest_; }
  // That layout; null: none.
  const Layout* fastest_layout() const;

  // Keeps a priced layout where it is good; whether it fits by the count.
  bool take(Candidate c);
  // As RefusedPrograms::beyond.
  double beyond(const Layout& l, double room) const { return refusals_.beyond(l, room); }
  // Why a layout of the space cannot be; `first`: ahead of what was said before.
  void contradict(std::string why, bool first = false);

  // The fastest layout that fits, or may, and the best of each family, of which the first few are replayed.
  void choose();
  // After choose(): whether the best layout is one whose program fits, or none is left. Else it is refused.
  absl::StatusOr<bool> allocate_best();
  // What has been refused, or needs as much as what has been, is no choice any more. Those layouts.
  std::vector<Layout> drop_refused();

  SearchResult& result() { return out_; }
  // The result, with names where stages begin; there is nothing more to choose from then.
  SearchResult finish();

 private:
  // Whether it is over by less than the count may err, so that the compiler is to say.
  bool is_doubtful(const Prediction& p) const;

  CostModel& model_;
  const Problem& problem_;
  const SearchOptions& options_;
  std::vector<PricedLayout> fit_, doubtful_;  // by the count; over by less than kCountError, for the compiler to say
  double fastest_ = kNever;                   // of fit_
  std::map<Family, Candidate> unfit_;
  std::vector<Candidate> refused_;  // whose programs do not fit
  RefusedPrograms refusals_;
  CutNames names_;
  std::set<std::string> reasons_;
  SearchResult out_;
};

}  // namespace partita
