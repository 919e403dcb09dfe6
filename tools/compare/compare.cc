#include "tools/compare/compare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "runtime/execute/executor.h"
#include "tools/compare/captures.h"
#include "tools/compare/describe_difference.h"
#include "tools/compare/dump.h"
#include "tools/compare/nonfinite.h"
#include "tools/compare/program_difference.h"
#include "tools/compare/rank_copies.h"
#include "tools/compare/same_program.h"
#include "tools/compare/side.h"
#include "tools/compare/step_check.h"
#include "tools/proof/confined.h"

namespace partita {
namespace {

constexpr int64_t kMostSeconds = 24 * 3600;

class Comparer {
 public:
  Comparer(Side& a, Side* b, const CompareOptions& options)
      : a_(a),
        b_(b),
        options_(options),
        same_program_(b != nullptr && same_program(a.copies().set(), b->copies().set())) {}

  absl::StatusOr<Comparison> run() {
    if (!options_.dump.empty()) {
      PARTITA_ASSIGN_OR_RETURN(dump_, read_dump(options_.dump, a_.copies().serial(), a_.copies().runs()));
    }
    for (int64_t step = 0; step < options_.steps; ++step) {
      PARTITA_RETURN_IF_ERROR(a_.next_step());
      if (b_ != nullptr) PARTITA_RETURN_IF_ERROR(b_->next_step());
      if (std::string text = run_step(step); !text.empty()) return Comparison{true, std::move(text), nodes_};
      a_.go_on();
      if (b_ != nullptr) b_->go_on();
    }
    return Comparison{false, agreement()};
  }

 private:
  std::string run_step(int64_t step) {
    const RankCopies::Copies in_a = a_.copies().collect(a_.captures());
    RankCopies::Copies in_b;
    if (b_ != nullptr) in_b = b_->copies().collect(b_->captures());
    if (step == 0 && b_ != nullptr) {
      if (std::string text = compare_outside(in_a, in_b); !text.empty()) return text;
    }
    StepReport report_a = a_.check(in_a), report_b;
    if (b_ != nullptr) report_b = b_->check(in_b);
    const bool dumped = step == 0 && !dump_.empty();
    if (dumped) report_b = StepCheck(a_.copies().serial(), a_.copies().runs(), dump_, &in_a).run();
    count(report_a, counts_[0]);
    if (b_ != nullptr || dumped) count(report_b, counts_[1]);
    std::string text;
    if (!report_a.differences.empty()) text += described(a_, report_a, step);
    if (!report_b.differences.empty() && b_ != nullptr) text += described(*b_, report_b, step);
    if (!report_b.differences.empty() && dumped)
      text += describe_difference(options_.dump, a_.graph(), report_b.differences.front(), step);
    if (text.empty()) return other_bits(step);
    name_nodes(a_, report_a);
    name_nodes(b_ != nullptr ? *b_ : a_, report_b);
    return text + other_side(report_a, report_b);
  }

  // What both sides hold for right, but not for the same.
  std::string other_bits(int64_t step) {
    if (!same_program_) return "";
    auto d = first_other_bits(a_.copies().set(), a_.captures(), b_->captures(), a_.name(), b_->name(), step);
    if (!d) return "";
    nodes_ = std::move(d->nodes);
    return std::move(d->text);
  }

  std::string described(const Side& side, const StepReport& report, int64_t step) const {
    return describe_difference(side.name(), side.copies(), side.captures(), report, step);
  }

  void name_nodes(const Side& side, const StepReport& report) {
    if (report.differences.empty()) return;
    const Difference& d = report.differences.front();
    const Graph& g = side.graph();
    for (NodeId n : d.between) nodes_.push_back(describe_node(g, g.nodes[static_cast<size_t>(n)]));
    if (!d.moved || d.copy.value < 0) return;
    // What went wrong on its way did so where ranks move it.
    const verifier::RankProgram& p = side.copies().set().programs[d.copy.stage];
    const NodeId n = p.code.values[static_cast<size_t>(d.copy.value)].producer;
    if (n != kNoNode)
      nodes_.push_back(describe_node(p.rank, p.rank.nodes[static_cast<size_t>(p.from[static_cast<size_t>(n)])]));
  }

  // What the side without a fault says of it.
  std::string other_side(const StepReport& a, const StepReport& b) const {
    if (a.differences.empty() == b.differences.empty()) return "";
    if (b_ == nullptr && options_.dump.empty()) return "";
    return cat("  ",
               a.differences.empty() ? a_.name()
               : b_ != nullptr       ? b_->name()
                                     : options_.dump,
               ": every value is what its node makes of its operands\n");
  }

  // First states and samples, which both sides must have alike.
  std::string compare_outside(const RankCopies::Copies& in_a, const RankCopies::Copies& in_b) const {
    const Graph &ga = a_.graph(), &gb = b_->graph();
    for (const State& s : ga.states) {
      for (const State& t : gb.states) {
        if (s.name != t.name || s.kind == StateKind::kAccumulator) continue;
        if (std::string text = compare_source(cat("state ", quote(s.name)), s.value, t.value, in_a, in_b);
            !text.empty())
          return text;
      }
    }
    for (const GraphInput& x : ga.inputs) {
      for (const GraphInput& y : gb.inputs) {
        if (x.name != y.name || x.kind != InputKind::kData || y.kind != InputKind::kData) continue;
        if (std::string text = compare_source(cat("input ", quote(x.name)), x.value, y.value, in_a, in_b);
            !text.empty())
          return text;
      }
    }
    return "";
  }

  std::string compare_source(const std::string& what, ValueId in_a, ValueId in_b, const RankCopies::Copies& of_a,
                             const RankCopies::Copies& of_b) const {
    const auto x = of_a.find({a_.copies().serial().layout(in_a).root, 0}),
               y = of_b.find({b_->copies().serial().layout(in_b).root, 0});
    if (x == of_a.end() || y == of_b.end()) return "";
    const RootCopy own = x->second.copies().front(), other = y->second.copies().front();
    // Of other numbers of samples, or longer than the state where its dimensions are padded.
    if (own.filled.size() != other.filled.size() || !own.whole || !other.whole) return "";
    const double unit = std::max(unit_roundoff(own.values.type.dtype), unit_roundoff(other.values.type.dtype));
    int64_t off = 0;
    for (size_t k = 0; k < own.filled.size(); ++k) {
      const bool floats = !own.values.f.empty() && !other.values.f.empty();
      const double p = floats ? own.values.f[k] : 0, q = floats ? other.values.f[k] : 0;
      off += floats ? p != q && !(std::isnan(p) && std::isnan(q)) &&
                          !(std::abs(p - q) <= unit * std::abs(p) && own.values.type.dtype != other.values.type.dtype)
                    : own.values.i != other.values.i && own.values.i[k] != other.values.i[k];
    }
    if (off == 0) return "";
    return cat("differs: before step 0, ", what, ": ", off, " of ", own.filled.size(), " elements are others in ",
               a_.name(), " than in ", b_->name(), "\n");
  }

  static void count(const StepReport& report, std::pair<int64_t, int64_t>& into) {
    into.first += report.compared;
    into.second += report.inside;
  }

  std::string agreement() {
    std::string text =
        cat("no difference beyond rounding in ", options_.steps, options_.steps == 1 ? " step" : " steps", "\n");
    auto tell = [&](const std::string& name, const std::pair<int64_t, int64_t>& counts, const std::string& loss) {
      append(text, "  ", name, ": ", counts.first, " values are what their nodes make of their operands; ",
             counts.second, " lie inside kernels", loss, "\n");
    };
    auto loss_of = [](Side& side) {
      const std::optional<double> loss = side.last_loss();
      return loss ? fmt::format("; last loss {:.7g}", *loss) : "";
    };
    tell(a_.name(), counts_[0], loss_of(a_));
    if (b_ != nullptr) tell(b_->name(), counts_[1], loss_of(*b_));
    if (!dump_.empty())
      append(text, "  ", options_.dump, ": ", counts_[1].first,
             " values are what their nodes make of what was dumped before them\n");
    return text;
  }

  Side& a_;
  Side* b_;
  const CompareOptions& options_;
  const bool same_program_;
  RankCopies::Copies dump_;
  std::vector<std::string> nodes_;
  std::pair<int64_t, int64_t> counts_[2] = {};
};

absl::Status check_samples(const ComparedBundle& a, const ComparedBundle& b) {
  if (a.bundle.samples == b.bundle.samples) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("a step of ", a.name, " takes ", a.bundle.samples, " samples, one of ", b.name,
                                        " ", b.bundle.samples, "; compile both with the same batch.global"));
}

}  // namespace

absl::StatusOr<Comparison> compare(const ComparedBundle& a, const std::optional<ComparedBundle>& b,
                                   const CompareOptions& options) {
  if (b) {
    PARTITA_RETURN_IF_ERROR(check_same_model(a.bundle.serial, b->bundle.serial, a.name, b->name));
    PARTITA_RETURN_IF_ERROR(check_samples(a, *b));
    if (const auto d = program_difference(a.bundle.serial, b->bundle.serial, a.name, b->name))
      return Comparison{true, cat("differs: ", d->text, "\n"), {d->node}};
  }
  if (options.nonfinite) return find_nonfinite(a, options);
  std::unique_ptr<Side> side_b;
  PARTITA_ASSIGN_OR_RETURN(const std::unique_ptr<Side> side_a, Side::start(a, a.train.data, options.steps));
  if (b) {
    PARTITA_ASSIGN_OR_RETURN(side_b, Side::start(*b, a.train.data, options.steps));
  }
  return Comparer(*side_a, side_b.get(), options).run();
}

absl::StatusOr<Comparison> compare_apart(const ComparedBundle& a, const std::optional<ComparedBundle>& b,
                                         const CompareOptions& options) {
  using Json = nlohmann::json;
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("the runs"));
  const Confinement limits{.folder = folder.path(),
                           .memory_bytes = ::sysconf(_SC_PHYS_PAGES) / 10 * 9 * ::sysconf(_SC_PAGESIZE),
                           .seconds = kMostSeconds};
  PARTITA_ASSIGN_OR_RETURN(const ConfinedResult result, run_confined(limits, [&]() -> absl::StatusOr<std::string> {
                             PARTITA_ASSIGN_OR_RETURN(const Comparison c, compare(a, b, options));
                             return Json{{"differs", c.differs}, {"text", c.text}, {"nodes", c.nodes}}.dump(
                                 -1, ' ', false, Json::error_handler_t::replace);
                           }));
  const Json j = Json::parse(result.text, nullptr, false);
  if (!j.is_object()) return absl::AbortedError("compare: the process that ran the bundles' code told nothing sound");
  return Comparison{j.value("differs", true), j.value("text", ""), j.value("nodes", std::vector<std::string>())};
}

}  // namespace partita
