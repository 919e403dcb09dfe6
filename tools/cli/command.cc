#include "tools/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <tuple>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/annotated_layout.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "partitioner/planner/report/plan_file.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {

namespace {

// The plan's pins over those of the recipe; pins of single values are the recipe's own. Programs must keep to the
// memory that the plan counts on.
absl::Status apply_plan(CompileRequest& request, Plan plan, const std::string& name) {
  Recipe& recipe = request.recipe;
  if (plan.compress) recipe.compress = *plan.compress;
  plan.pin.values = std::move(recipe.pin.values);
  recipe.pin = std::move(plan.pin);
  if (recipe.batch.global && *recipe.batch.global != plan.global_batch) {
    return absl::InvalidArgumentError(cat(quote(name, 200), " is for a global batch of ", plan.global_batch,
                                          " and batch.global is ", *recipe.batch.global,
                                          "; plan again with this recipe"));
  }
  recipe.batch.global = plan.global_batch;
  recipe.batch.accumulation.reset();  // follows from the plan's ranks
  request.room = plan.room();
  const Plan::Predicted& p = plan.predicted;
  request.plan = {{"step_seconds", p.step_seconds}};
  if (p.mfu > 0) request.plan["peak_flops"] = p.model_flops / p.step_seconds / p.mfu;
  if (p.price_per_hour > 0) request.plan["price_per_hour"] = p.price_per_hour;
  if (!p.memory_bytes.empty())
    request.plan["memory_bytes"] = *std::max_element(p.memory_bytes.begin(), p.memory_bytes.end());
  return absl::OkStatus();
}

}  // namespace

void add_precision(CLI::App& app, std::optional<Precision>& precision) {
  const auto names = enum_names<Precision>();
  app.add_option_function<std::string>(
         "--precision",
         [names, &precision](const std::string& name) {
           precision = static_cast<Precision>(std::find(names.begin(), names.end(), name) - names.begin());
         },
         "fp32, tf32, bf16, fp16 or fp8, in place of the recipe's precision")
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())));
}

void add_sets(CLI::App& app, std::vector<std::string>& sets) {
  app.add_option("--set", sets, "a key of the recipe over what the file says: KEY=VALUE, e.g. optimizer.lr=1e-4")
      ->allow_extra_args(false);
  for (const auto& [flag, key, what] : {std::tuple{"--lr", "optimizer.lr", "the learning rate"},
                                        {"--batch-size", "batch.global", "samples per optimizer step, over all ranks"},
                                        {"--seed", "seed", "of dropout, first values and the shuffle"}}) {
    app.add_option_function<std::string>(
           flag, [&sets, key = std::string(key)](const std::string& value) { sets.push_back(cat(key, "=", value)); },
           cat(what, ": short for --set ", key, "=VALUE"))
        ->type_name("VALUE");
  }
}

void ModelFlags::add(CLI::App& app) {
  app.add_option("model", model, "ONNX file, or a folder with one or with ONNX Runtime training artifacts")->required();
  app.add_option("--train", train_file, "the recipe, train.yaml (docs/train_yaml.md)");
  add_precision(app, precision);
  add_sets(app, sets);
  app.add_option("--ranks", ranks, "number of ranks (devices); default: what the pins say, else 1")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--plan", plan,
                 "the layout of this plan.json, which `partita plan` wrote; --like and --pin change it");
  app.add_flag("--allow-infeasible", allow_infeasible,
               "go on though a program needs more memory than the plan's devices have");
  app.add_option("--like", like, "a well-known layout: ddp, zero1, zero2, zero3, …; or an annotated .onnx")
      ->allow_extra_args(false);
  app.add_option("--pin", pins, "fix a part of the plan: KEY=VALUE, e.g. data=2")->allow_extra_args(false);
  app.add_option("--target", target,
                 "cpu:host (default), cpu:x86-64-v3 (any AVX2 machine), cpu:x86-64-v4, or cuda:sm_80, cuda:sm_90, "
                 "cuda:sm_100");
  app.add_option("--dump-ir", dump_ir, "write the graph into this folder after each pass that changes it");
  app.add_option("--stop-after", stop_after, "stop after this pass");
  app.add_flag("--no-fusion", no_fusion, "one kernel per operation: slow, to find a fault");
  app.add_flag("--no-epilogues", no_epilogues,
               "a GPU's products write what they are, and what follows them is a kernel: to compare with");
  app.add_flag("--no-in-place", no_in_place, "every value has memory of its own: to find a fault");
  app.add_flag("--time-passes", time_passes, "print the time that each pass takes");
}

absl::StatusOr<CompileRequest> ModelFlags::request() const {
  CompileRequest r;
  r.model = model;
  if (!train_file.empty() || !sets.empty()) {
    PARTITA_ASSIGN_OR_RETURN(r.recipe, load_recipe(train_file, sets));
  }
  if (precision) r.recipe.precision = *precision;
  if (made) {
    PARTITA_RETURN_IF_ERROR(apply_plan(r, *made, "the plan"));
  } else if (!plan.empty()) {
    PARTITA_ASSIGN_OR_RETURN(Plan read, read_plan(plan));
    PARTITA_RETURN_IF_ERROR(apply_plan(r, std::move(read), plan));
  }
  if (allow_infeasible) r.room.clear();
  for (const std::string& preset : like) PARTITA_RETURN_IF_ERROR(apply_like(r.recipe, preset));
  const PinRecipe planned = r.recipe.pin;
  for (const std::string& pin : pins) PARTITA_RETURN_IF_ERROR(apply_pin(r.recipe, pin));
  if (made || !plan.empty()) drop_other_cuts(planned, r.recipe.pin);
  if (!r.plan.is_null() && (!pins.empty() || !like.empty())) r.plan.erase("step_seconds"), r.plan.erase("memory_bytes");
  PARTITA_RETURN_IF_ERROR(check_recipe(r.recipe, train_file.empty() ? "command line" : train_file));
  if (target.rfind("cpu:", 0) == 0) {
    r.target.cpu = target.substr(4);
  } else if (target.rfind("cuda:", 0) == 0) {
    r.target.gpu = target.substr(5);
    PARTITA_ASSIGN_OR_RETURN(r.target.assembler, find_assembler());
  } else if (!target.empty()) {
    return absl::InvalidArgumentError(cat(
        "--target ", quote(target), ": expected cpu:host, cpu:x86-64-v3, cpu:x86-64-v4 or cuda:sm_90 and the like"));
  }
  r.ranks = ranks;
  r.target.fuse = !no_fusion;
  r.target.epilogues = !no_epilogues;
  r.target.in_place = !no_in_place;
  r.passes.dump_folder = dump_ir;
  r.passes.stop_after = stop_after;
  for (const std::string& note : notes_on_recipe(train_file)) std::fprintf(stderr, "note: %s\n", note.c_str());
  return r;
}

absl::Status check_words(const CLI::App& app, int argc, char** argv) {
  const CLI::App* verb = &app;
  std::vector<const CLI::App*> commands = app.get_subcommands({});
  std::string line = "partita";
  int k = 1;
  auto called = [&](const CLI::App* c) { return c->get_name() == argv[k]; };
  for (; k < argc; ++k) {
    auto next = std::find_if(commands.begin(), commands.end(), called);
    if (next == commands.end()) break;
    verb = *next, commands = verb->get_subcommands({});
    line += cat(" ", argv[k]);
  }
  auto unknown = [&](const char* what, std::string_view word, const std::vector<std::string>& known) {
    const std::string near = nearest_name(word, known);
    return absl::InvalidArgumentError(cat("unknown ", what, " ", quote(word),
                                          near.empty() ? "" : cat("; the nearest is ", quote(near)), "; `", line,
                                          " --help` lists all"));
  };
  const std::vector<const CLI::Option*> taken = verb->get_options();
  const bool takes_word =
      std::any_of(taken.begin(), taken.end(), [](const CLI::Option* o) { return o->get_positional(); });
  if (k < argc && argv[k][0] != '-' && !commands.empty() && !takes_word) {
    std::vector<std::string> names;
    for (const CLI::App* c : commands) names.push_back(c->get_name());
    return unknown("command", argv[k], names);
  }
  for (; k < argc && std::string_view(argv[k]) != "--"; ++k) {
    const std::string_view word = std::string_view(argv[k]).substr(0, std::string_view(argv[k]).find('='));
    if (word.substr(0, 2) != "--" || verb->get_option_no_throw(std::string(word)) != nullptr) continue;
    std::vector<std::string> options;
    for (const CLI::Option* o : taken)
      for (const std::string& name : o->get_lnames()) options.push_back(cat("--", name));
    return unknown("option", word, options);
  }
  return absl::OkStatus();
}

void refuse_nan(CLI::App& app) {
  auto is_number = [](const std::string& text) {
    double number = 0;
    return CLI::detail::lexical_cast(text, number) && std::isnan(number) ? cat("expected a number, found ", quote(text))
                                                                         : std::string();
  };
  for (CLI::App* verb : app.get_subcommands({})) {
    for (CLI::Option* option : verb->get_options()) {
      if (option->get_type_name().rfind("FLOAT", 0) == 0) option->check(is_number);
    }
  }
}

// "--steps: Value -1 not in range 0.000000 to 17976931…" of a check for numbers from 0 on, or above 0.
std::string without_limits(const CLI::App& app, const std::string& message) {
  constexpr std::string_view kValue = ": Value ", kRange = " not in range 0.000000 to 179769";
  const size_t value = message.find(kValue), range = message.find(kRange), end = message.find('\n');
  if (value == message.npos || range == message.npos || end == message.npos) return message;
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().back();
  const std::string name = message.substr(0, value);
  const CLI::Option* option = verb->get_option_no_throw(name);
  const bool from_zero = option == nullptr || option->get_type_name().find("NONNEGATIVE") != std::string::npos;
  const size_t begin = value + kValue.size();
  return cat(name, " ", quote(message.substr(begin, range - begin)), ": expected ",
             from_zero ? "0 or more" : "a number above 0", message.substr(end));
}

absl::StatusOr<std::string> find_runner() {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::path here = fs::read_symlink("/proc/self/exe", ec).parent_path();
  for (const fs::path& p :
       {here / "partita_runner", here / "../lib/partita/partita_runner", here / "../runtime/partita_runner"}) {
    if (fs::exists(p, ec)) return p.lexically_normal().string();
  }
  return absl::NotFoundError(
      cat("the runner (partita_runner) is not beside ", quote(here.string()), "; build the whole project"));
}

void print_warnings(const Compiled& compiled) {
  for (const std::string& w : compiled.warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
}

void print_seconds(const Compiled& compiled) {
  std::fprintf(stderr, "%s", format_pass_times(compiled.passes).c_str());
  for (const auto& [phase, seconds] : compiled.seconds) std::fprintf(stderr, "%-12s %8.3f s\n", phase.c_str(), seconds);
}

}  // namespace partita
