#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/cluster/write_profile.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/missing.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/search/fixes.h"
#include "tools/annotate/annotate_model.h"
#include "tools/calibrate/refine.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"

namespace partita {
namespace {

constexpr size_t kMostFixes = 8;        // that are told
constexpr double kWorthTelling = 0.98;  // of the plan's step

struct Flags {
  PlanRequest request;
  std::string output, annotated, compare, refine, ran, refined_output;
  bool allow_infeasible = false, json = false, quiet = false;
};

std::vector<std::string> split_presets(const std::string& text) {
  // "ddp,megatron:tp8,pp4": what follows a preset with arguments and is none itself belongs to it.
  std::vector<std::string> out;
  std::string word;
  auto is_argument = [](const std::string& w) {
    size_t digits = w.find_first_of("0123456789");
    return digits != std::string::npos && digits > 0 && digits <= 4 && w.find(':') == std::string::npos &&
           w.find_first_not_of("0123456789", digits) == std::string::npos && w.rfind("zero", 0) != 0;
  };
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at < text.size() && text[at] != ',') {
      word += text[at];
      continue;
    }
    if (!out.empty() && out.back().find(':') != std::string::npos && is_argument(word)) {
      append(out.back(), ",", word);
    } else if (!word.empty()) {
      out.push_back(word);
    }
    word.clear();
  }
  return out;
}

absl::Status infeasible(const Planning& p, const SearchResult& result) {
  std::string text =
      cat("no layout fits. Nearest: ", describe(result.nearest->layout), ": ", explain_missing(*result.nearest));
  std::vector<Fix> fixes = find_fixes(p.problem, p.options, p.library);
  text += fixes.empty() ? "\nNothing that was tried makes it fit."
                        : "\nWhat makes it fit (each planned and checked; other hardware last, cheapest step first):";
  for (size_t k = 0; k < fixes.size() && k < kMostFixes; ++k) {
    const Prediction& f = fixes[k].candidate.prediction;
    const double price = fixes[k].price_of_step();
    append(text, "\n  ", fixes[k].change, "\n      ", describe(fixes[k].candidate.layout), "; ",
           fmt::format("{:.3g} s{} a step, its program and the reserve {} of {}", f.step_seconds,
                       price > 0 ? fmt::format(" and ${:.3g}", price) : "", gigabytes(f.most_memory()),
                       gigabytes(f.capacity[static_cast<size_t>(f.worst_stage)])));
  }
  return absl::ResourceExhaustedError(text);
}

absl::StatusOr<std::vector<Plan::Compared>> compare(const Planning& p, const Candidate& best,
                                                    const std::string& presets) {
  std::vector<Plan::Compared> rows;
  for (const std::string& preset : split_presets(presets)) {
    PARTITA_ASSIGN_OR_RETURN(SearchOptions options, options_with(p, {preset}, {}));
    CostModel model(p.problem);
    auto found = search(model, options);
    Plan::Compared& row = rows.emplace_back(Plan::Compared{.like = preset});
    if (!found.ok()) {
      row.error = std::string(found.status().message());
    } else {
      row.found = other_layout(found->best ? *found->best : *found->nearest, &best);
    }
  }
  return rows;
}

// What was corrected beside what is built in, and all else that the library got from --profiles.
absl::StatusOr<std::string> refined_profiles(const ProfileLibrary& library, const ProfileLibrary& built_in,
                                             const Cluster& cluster) {
  ProfileSet set;
  for (const DeviceGroup& group : cluster.groups) {
    const std::string& name = group.device.name;
    const bool twice =
        std::any_of(set.devices.begin(), set.devices.end(), [&](const DeviceProfile& d) { return d.name == name; });
    if (twice)
      return absl::InvalidArgumentError(
          cat("--refined-profile: two groups of devices are named ", quote(name),
              ", and each has constants of its own now; give them names in the cluster file: device: {like: ", name,
              ", name: …}"));
    set.devices.push_back(group.device);
    for (const LinkLevel& l : group.links) {
      const bool known =
          std::any_of(set.links.begin(), set.links.end(), [&](const LinkProfile& k) { return k.kind == l.link.kind; });
      if (!known) set.links.push_back(l.link);
    }
  }
  auto is_new = [](const auto& list, auto member, const std::string& name) {
    return std::none_of(list.begin(), list.end(), [&](const auto& x) { return x.*member == name; });
  };
  for (const std::string& n : library.device_names()) {
    if (!built_in.device(n) && is_new(set.devices, &DeviceProfile::name, n)) set.devices.push_back(*library.device(n));
  }
  for (const std::string& n : library.link_kinds()) {
    if (!built_in.link(n) && is_new(set.links, &LinkProfile::kind, n)) set.links.push_back(*library.link(n));
  }
  for (const std::string& n : library.preset_names()) {
    if (!built_in.preset(n)) set.presets.push_back(*library.preset(n));
  }
  return profile_text(set);
}

// A run of another model, or of other samples a step, held beside this one's prediction would correct the profile by
// what the two differ in.
absl::Status check_ran(const Flags& flags, const Planning& p, const Plan& plan, const Layout& ran) {
  const double there = plan.predicted.model_flops, here = CostModel(p.problem).predict(ran, true).flops;
  if (plan.global_batch == p.problem.global_batch && std::abs(there - here) <= 1e-6 * here) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("--ran: {} is a plan of another {}: {:.4g} FLOP in a step of {} samples, those of this model and "
                  "recipe are {:.4g} in {}; refine with the model and recipe that ran, and plan others by its "
                  "--refined-profile",
                  quote(flags.ran, 1000), plan.global_batch == p.problem.global_batch ? "model" : "batch", there,
                  plan.global_batch, here, p.problem.global_batch));
}

// Corrects the profile from a measured run of `searched`'s layout (or of --ran's), searches again with it, and says
// what that changes. Planning goes on with the corrected problem and what is found for it.
absl::StatusOr<SearchResult> refine_problem(const Flags& flags, Planning& p, const SearchResult& searched) {
  const Candidate& planned = searched.best ? *searched.best : *searched.nearest;
  Layout ran = planned.layout;
  if (!flags.ran.empty()) {
    PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.ran));
    PARTITA_ASSIGN_OR_RETURN(ran, planned_layout(p, plan));
    PARTITA_RETURN_IF_ERROR(check_ran(flags, p, plan, ran));
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<MeasuredGroup> groups, read_measured_groups(flags.refine, p.problem, ran));
  const MeasuredRun& measured = groups[0].measured.run;
  double before = CostModel(p.problem).predict(ran, true).step_seconds;
  Refined refined = refine(p.problem, ran, groups);
  p.cluster = std::move(refined.cluster);
  CostModel model(p.problem);
  PARTITA_ASSIGN_OR_RETURN(SearchResult again, search(model, p.options));
  const Candidate& now = again.best ? *again.best : *again.nearest;
  if (!flags.quiet && !flags.json) {
    std::printf("measured run: %s; %.4g ms a step over %.0f steps, predicted %.4g ms, with the corrections %.4g ms\n",
                describe(ran).c_str(), measured.step_seconds * 1e3, measured.training_steps, before * 1e3,
                model.predict(ran, true).step_seconds * 1e3);
    for (const MeasuredGroup& g : groups) {
      const MeasuredRanks& all = g.measured;
      if (groups.size() > 1) std::printf("%s\n", describe(g, p.cluster).c_str());
      if (all.ranks > 1)
        std::printf(
            "of %zu ranks, rank %lld works longest: %.4g ms a step beside communication, the median rank %.4g ms\n",
            all.ranks, static_cast<long long>(g.slowest_rank()), all.slowest_work * 1e3, all.median_work * 1e3);
    }
    for (const Correction& c : refined.corrections)
      std::printf("  %-40s %.4g -> %.4g  (%s)\n", c.constant.c_str(), c.before, c.after, c.why.c_str());
    if (refined.corrections.empty()) std::printf("  nothing to correct\n");
    if (now.layout == planned.layout) {
      std::printf("the plan stays: %s\n", describe(now.layout).c_str());
    } else {
      std::printf("the plan changes: %s, %.4g ms a step, in place of %s, which would take %.4g ms\n",
                  describe(now.layout).c_str(), now.prediction.step_seconds * 1e3, describe(planned.layout).c_str(),
                  model.predict(planned.layout, true).step_seconds * 1e3);
    }
  }
  if (!flags.refined_output.empty()) {
    PARTITA_ASSIGN_OR_RETURN(ProfileLibrary built_in, ProfileLibrary::load());
    PARTITA_ASSIGN_OR_RETURN(std::string text, refined_profiles(p.library, built_in, p.cluster));
    PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.refined_output, text));
    for (const DeviceGroup& g : p.cluster.groups) {
      const std::string& name = g.device.name;
      if (!flags.quiet && !p.library.device(name))
        std::fprintf(stderr, "note: the cluster file describes %s itself; say device: %s there to plan with %s\n",
                     name.c_str(), name.c_str(), flags.refined_output.c_str());
    }
  }
  return again;
}

// Says where the groups of a cluster, which hold the stages in order, would better be listed the other way round.
void tell_better_order(const Planning& p, const Candidate& chosen) {
  Cluster other = p.cluster;
  std::reverse(other.groups.begin(), other.groups.end());
  Problem problem = p.problem;
  problem.cluster = &other;
  CostModel model(problem);
  const auto found = search(model, p.options);
  if (!found.ok() || !found->best) return;
  const double theirs = found->best->prediction.step_seconds, ours = chosen.prediction.step_seconds;
  if (chosen.prediction.fits && theirs > kWorthTelling * ours) return;
  std::printf("groups in the order %s: %.4g s, %s\n", other.hardware().c_str(), theirs,
              describe(found->best->layout).c_str());
}

absl::StatusOr<Plan> run(const Flags& flags) {
  bool terminal = isatty(2) != 0 && !flags.quiet;
  if (terminal) std::fprintf(stderr, "reading the model …\r");
  PlanRequest request = flags.request;
  request.published = flags.allow_infeasible;
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, prepare_plan(request));
  if (!flags.quiet) {
    for (const std::string& w : p->warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
    if (const LengthsRecipe& lengths = p->recipe.lengths; !lengths.extents.empty())
      std::fprintf(
          stderr,
          "note: a step's time is the mean over the lengths of bind.%s, each taken equally often; stages and programs "
          "are those of length %lld\n",
          lengths.dimension.c_str(), static_cast<long long>(lengths.extents.back()));
  }
  if (terminal) std::fprintf(stderr, "searching …          \r");
  std::optional<CostModel> model(std::in_place, p->problem);
  PARTITA_ASSIGN_OR_RETURN(SearchResult result, search(*model, p->options));
  if (!flags.refine.empty()) {
    PARTITA_ASSIGN_OR_RETURN(result, refine_problem(flags, *p, result));
    model.emplace(p->problem);
  }
  if (!result.best && !flags.allow_infeasible) return infeasible(*p, result);
  const Candidate& chosen = result.best ? *result.best : *result.nearest;
  const PlanRequest& r = flags.request;
  Plan::Inputs inputs{.model = r.model,
                      .train = r.train_file,
                      .cluster = p->cluster.text,
                      .cluster_path = r.cluster_file,
                      .profiles = r.profile_file,
                      .precision = r.precision,
                      .like = r.like,
                      .pins = r.pins,
                      .sets = r.sets};
  if (!flags.refined_output.empty()) {
    inputs.profiles = flags.refined_output;
  } else {
    inputs.refined = flags.refine;
  }
  Plan plan = make_plan(p->problem, *model, result, chosen, std::move(inputs));
  if (!flags.compare.empty()) {
    PARTITA_ASSIGN_OR_RETURN(plan.compared, compare(*p, chosen, flags.compare));
  }
  const std::string text = plan_text(plan);
  if (!flags.output.empty()) PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.output, text));
  if (!flags.annotated.empty()) {
    PARTITA_ASSIGN_OR_RETURN(const AnnotatedModel a, annotate_model(*p, chosen.layout, flags.annotated));
    if (!flags.quiet && a.unsaid > 0)
      std::fprintf(stderr, "note: how %lld tensors lie cannot be said in ONNX: they are padded\n",
                   static_cast<long long>(a.unsaid));
  }
  if (flags.json) {
    std::fputs(text.c_str(), stdout);
  } else if (!flags.quiet) {
    std::fputs(summary(plan).c_str(), stdout);
    std::printf(
        "model read in %.2f s, searched in %.2f s: %lld layouts priced, %lld groups bounded away, gap %.2f %%\n",
        p->analysis_seconds, result.seconds, static_cast<long long>(result.considered),
        static_cast<long long>(result.bounded), result.gap * 100);
    if (p->cluster.groups.size() > 1) tell_better_order(*p, chosen);
  }
  return plan;
}

}  // namespace

absl::StatusOr<Plan> search_plan(const PlanRequest& request, bool quiet) {
  Flags flags;
  flags.request = request, flags.quiet = quiet;
  return run(flags);
}

void add_plan_flags(CLI::App& verb, PlanRequest& request) {
  verb.add_option("model", request.model, "ONNX file or folder; its weights are not needed")->required();
  verb.add_option("--train", request.train_file, "the recipe, train.yaml (docs/train_yaml.md)");
  add_precision(verb, request.precision);
  add_sets(verb, request.sets);
  verb.add_option("--cluster", request.cluster_file, "the machines, cluster.yaml (docs/planning.md)")->required();
  verb.add_option("--profiles", request.profile_file, "YAML of devices and links that replaces built-in values");
  verb.add_option("--pin", request.pins, "fix a part of the plan: KEY=VALUE, e.g. tensor=8")->allow_extra_args(false);
  verb.add_option("--like", request.like,
                  "a well-known layout: ddp, fsdp, zero1, megatron:tp8,pp4, …; or an annotated .onnx")
      ->allow_extra_args(false);
  verb.add_option("--time-limit", request.time_limit, "seconds to search; the gap that is left is printed")
      ->check(CLI::NonNegativeNumber);
}

void add_plan(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("plan", "search the fastest layout of a model's training on a cluster");
  add_plan_flags(*verb, flags->request);
  verb->add_option("-o,--output", flags->output, "plan.json to write");
  verb->add_option(
      "--annotate", flags->annotated,
      "ONNX file to write: the model with the plan as device configuration, sharding of tensors and stages "
      "of nodes (ONNX IR 11); --like FILE.onnx takes it as pins");
  verb->add_option("--compare", flags->compare, "price these layouts too: ddp,fsdp,megatron:tp8,pp4");
  CLI::Option* refine = verb->add_option(
      "--refine", flags->refine,
      "correct the profile from a measured run (the trace that `partita train --profile` writes), then plan with it");
  verb->add_option("--ran", flags->ran,
                   "plan.json of that run; default: it ran the plan that is found without --refine")
      ->needs(refine);
  verb->add_option("--refined-profile", flags->refined_output, "write the corrected profile to this YAML file")
      ->needs(refine);
  verb->add_flag("--allow-infeasible", flags->allow_infeasible, "write a plan that does not fit rather than fail");
  verb->add_flag("--json", flags->json, "the plan on standard output");
  verb->add_flag("--quiet", flags->quiet, "say nothing but errors");
  verb->callback([flags, &result] { result = run(*flags).status(); });
}

}  // namespace partita
