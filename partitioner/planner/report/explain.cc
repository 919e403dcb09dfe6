#include "partitioner/planner/report/explain.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

using Json = nlohmann::json;

double number(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number() ? j[key].get<double>() : 0;
}
std::string words(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}
const Json& part(const Json& j, const char* key) {
  static const Json empty = Json::object();
  return j.is_object() && j.contains(key) ? j[key] : empty;
}
std::string gb(double bytes) {
  return bytes > 0 && bytes < 1e8 ? fmt::format("{:.3g} MB", bytes / 1e6) : fmt::format("{:.1f} GB", bytes / 1e9);
}

bool fits(const Json& j) { return !j.is_object() || !j.contains("fits") || j["fits"] != false; }

std::string bar(double share) {
  return std::string(static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 40)), '#');
}

std::vector<std::pair<double, std::string>> largest_first(const Json& parts) {
  std::vector<std::pair<double, std::string>> out;
  for (const auto& [name, value] : parts.items()) {
    if (value.is_number() && name != "total" && value.get<double>() > 0) out.emplace_back(value.get<double>(), name);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return out;
}

// "12.6 TFLOP", "218 M"
std::string scaled(double value, const char* unit) {
  for (auto [prefix, size] : {std::pair{"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}})
    if (value >= size) return fmt::format("{:.4g} {}{}", value / size, prefix, unit);
  return fmt::format("{:.4g} {}", value, unit);
}

// "12" or "24 to 31"; `all`: of all stages.
std::string units_of_stages(const Json& plan, double* all) {
  double least = 1e300, most = 0;
  *all = 0;
  for (const Json& stage : part(plan, "stages")) {
    double units = 0;
    for (const Json& chunk : part(stage, "chunks")) units += number(chunk, "units");
    least = std::min(least, units), most = std::max(most, units), *all += units;
  }
  return least == most ? fmt::format("{:.0f}", most) : fmt::format("{:.0f} to {:.0f}", least, most);
}

std::string time_table(const Json& p) {
  std::string text;
  double step = number(p, "step_seconds");
  for (const auto& [seconds, name] : largest_first(part(p, "breakdown"))) {
    if (seconds > step * 5e-4)
      text +=
          fmt::format("  {:<11} {:>9.4g} s {:>5.1f} %  {}\n", name, seconds, 100 * seconds / step, bar(seconds / step));
  }
  return text;
}

// "data 4 x tensor 2"
std::string axes_text(const Json& axes) {
  std::string text;
  for (const char* name : {"data", "tensor", "context", "expert"}) {
    if (number(axes, name) > 1)
      append(text, text.empty() ? "" : " x ", name, " ", fmt::format("{:.0f}", number(axes, name)));
  }
  return text.empty() ? "one rank" : text;
}

// What each run of stages does that are alike in devices and axes; nothing where all stages of a plan are.
std::string stage_table(const Json& plan) {
  const Json &stages = part(plan, "stages"), &axes = part(part(plan, "pin"), "stages");
  if (!stages.is_array() || stages.empty() || !stages[0].contains("ranks")) return "";
  auto axes_of = [&](size_t s) -> const Json& {
    return axes.is_array() && s < axes.size() ? axes[s] : part(plan, "pin");
  };
  auto alike = [&](size_t a, size_t b) {
    return words(stages[a], "device") == words(stages[b], "device") && axes_of(a) == axes_of(b);
  };
  std::string text;
  size_t runs = 0;
  for (size_t first = 0, next = 0; first < stages.size(); first = next, ++runs) {
    double units = 0, busiest = 0, fullest = 0, last_rank = 0;
    for (; next < stages.size() && alike(first, next); ++next) {
      double seconds = 0;
      for (const Json& c : part(stages[next], "chunks")) {
        units += number(c, "units");
        seconds += number(c, "forward_seconds") + number(c, "backward_seconds");
        if (words(part(plan, "pin"), "schedule") == "zero_bubble") seconds += number(c, "weight_seconds");
      }
      busiest = std::max(busiest, seconds);
      fullest = std::max(fullest, number(part(stages[next], "memory"), "total"));
      last_rank = number(stages[next], "first_rank") + number(stages[next], "ranks") - 1;
    }
    text += fmt::format("  {:<12} {:<22} {}: ranks {:.0f} to {:.0f}, {:.0f} units, {:.4g} s a micro-batch, {} of {}\n",
                        next - first == 1 ? cat("stage ", first) : cat("stages ", first, "-", next - 1),
                        axes_text(axes_of(first)), words(stages[first], "device"), number(stages[first], "first_rank"),
                        last_rank, units, busiest, gb(fullest), gb(number(stages[first], "capacity_bytes")));
  }
  return runs > 1 ? text : "";
}

// The stage whose devices have least memory left, or lack most.
size_t fullest_stage(const Json& plan) {
  size_t worst = 0;
  double most = -1;
  const Json& stages = part(plan, "stages");
  for (size_t k = 0; k < stages.size(); ++k) {
    double over = number(part(stages[k], "memory"), "total") - number(stages[k], "capacity_bytes");
    if (k == 0 || over > most) most = over, worst = k;
  }
  return worst;
}

}  // namespace

std::vector<std::string> departures(const Json& plan) {
  std::vector<std::string> notes;
  if (std::string kind = words(plan, "compress"); !kind.empty() && kind != "none")
    notes.push_back(
        cat("compress: ", kind, ": gradients travel compressed; training is not that of the serial program"));
  if (words(part(plan, "pin"), "schedule") == "pipedream")
    notes.emplace_back(
        "schedule: pipedream: asynchronous: each micro-batch is an optimizer step, on weights that lack those of "
        "micro-batches in flight; training is not that of the serial program");
  if (words(plan, "batch_statistics") == "replica")
    notes.emplace_back(
        "semantics: batch_norm: replica: batch statistics are of each rank's micro-batch, not of the global batch");
  return notes;
}

std::string summary(const Json& plan) {
  const Json& p = part(plan, "predicted");
  double step = number(p, "step_seconds");
  std::string text = cat(words(plan, "layout"), " on ", words(plan, "hardware"), "\n");
  double tokens = number(p, "tokens_per_second");
  if (const std::string links = words(plan, "links"); !links.empty()) append(text, "links: ", links, "\n");
  const char* unit = std::abs(tokens * step - number(plan, "global_batch")) < 0.5 ? "samples" : "tokens";
  text += fmt::format("step {:.4g} s, {} {}/s, MFU {:.1f} %{}\n", step,
                      tokens < 1e3 ? fmt::format("{:.4g}", tokens) : fmt::format("{:.0f}", tokens), unit,
                      100 * number(p, "mfu"), p.is_object() && fits(p) ? "" : "; DOES NOT FIT");
  for (const std::string& note : departures(plan)) append(text, note, "\n");
  const Json& pin = part(plan, "pin");
  if (number(pin, "pipeline") > 1 && part(pin, "cuts").empty())
    text += "stages: the plan has no names for its cuts; compile balances the stages anew\n";
  text += stage_table(plan);
  text += time_table(p);
  const Json& stages = part(plan, "stages");
  if (stages.is_array() && !stages.empty()) {
    const Json& stage = stages[fullest_stage(plan)];
    double capacity = number(stage, "capacity_bytes");
    const Json& memory = part(stage, "memory");
    text +=
        fmt::format("memory of the fullest stage ({} of {}): {} of {}{}\n", fullest_stage(plan), stages.size(),
                    gb(number(memory, "total")), gb(capacity),
                    fits(p) && number(memory, "total") > capacity ? " by the count, which its program is below" : "");
    for (const auto& [bytes, name] : largest_first(memory))
      text += fmt::format("  {:<15} {:>9} {:>5.1f} %  {}\n", name, gb(bytes), 100 * bytes / capacity,
                          bar(bytes / capacity));
  }
  const Json& program = part(p, "program_bytes");
  if (program.is_array() && program.size() == stages.size()) {
    size_t most = 0;
    auto room = [&](size_t s) {
      return number(stages[s], "capacity_bytes") - number(part(stages[s], "memory"), "reserve_assumed");
    };
    for (size_t s = 1; s < program.size(); ++s) {
      if (program[s].get<double>() - room(s) > program[most].get<double>() - room(most)) most = s;
    }
    text += fmt::format("its program, as compile lays it out: {} of {} beside the reserve (stage {} of {})\n",
                        gb(program[most].get<double>()), gb(room(most)), most, stages.size());
    if (fits(p) && program[most].get<double>() > room(most))
      text +=
          "compile will refuse it: the program takes many times what is counted, so that no layout would do. The graph "
          "spells out what the cost model takes for one op; export that op in another way\n";
  }
  if (plan.contains("compared")) {
    text += "compared:\n";
    for (const Json& c : plan["compared"]) {
      text += fmt::format(
          "  {:<22} {}\n", words(c, "like"),
          c.contains("error") ? words(c, "error")
          : fits(c) ? fmt::format("{:.4g} s  {}; {}", number(c, "step_seconds"), words(c, "layout"), words(c, "reason"))
                    : fmt::format("DOES NOT FIT  {}; {}", words(c, "layout"), words(c, "reason")));
    }
  }
  return text;
}

std::string explanation(const Json& plan) {
  std::string text = summary(plan);
  const Json& p = part(plan, "predicted");
  double step = number(p, "step_seconds");
  auto parts = largest_first(part(p, "breakdown"));
  const Json& pin = part(plan, "pin");
  text += "\nwhy\n";
  double tensor = number(pin, "tensor"), pipeline = number(pin, "pipeline"), data = number(pin, "data");
  const Json &each = part(pin, "stages"), &cuts = part(pin, "cuts");
  if (each.is_array() && !each.empty()) {
    text += "  what crosses between stages that differ is laid out anew; its time is under send\n";
    tensor = data = 1;
  }
  if (cuts.is_array() && !cuts.empty()) {
    append(text, "  ", number(pin, "interleave") > 1 ? "chunks" : "stages", " begin at:");
    for (const Json& c : cuts) append(text, " ", c.is_string() ? c.get<std::string>() : "");
    text += "\n";
  }
  if (tensor > 1)
    text += fmt::format(
        "  tensor {:.0f}: each device multiplies 1/{:.0f} of every layer; partial sums cost {:.1f} % of the step\n",
        tensor, tensor, 100 * number(part(p, "breakdown"), "tensor") / step);
  if (pipeline > 1) {
    double units = 0;
    const std::string each_has = units_of_stages(plan, &units);
    text += fmt::format(
        "  pipeline {:.0f}: each stage holds {} of the {:.0f} units; {:.0f} micro-batches leave a bubble of {:.1f} %\n",
        pipeline, each_has, units, number(plan, "micro_batches"), 100 * number(p, "bubble_share"));
  }
  if (data > 1)
    text += fmt::format("  data {:.0f}: {:.0f} replicas share the batch; summing gradients ({}) costs {:.1f} %\n", data,
                        data, words(p, "gradient_collective"), 100 * number(part(p, "breakdown"), "gradients") / step);
  const double context = number(pin, "context"), expert = number(pin, "expert");
  const Json& b = part(p, "breakdown");
  if (context > 1)
    text += fmt::format(
        "  context {:.0f}: each device has 1/{:.0f} of every sample's positions; attention's exchanges cost "
        "{:.1f} %\n",
        context, context, 100 * number(b, "context") / step);
  if (expert > 1)
    text += fmt::format(
        "  expert {:.0f}: each device holds 1/{:.0f} of the experts; sending tokens to them costs {:.1f} %\n", expert,
        expert, 100 * number(b, "expert") / step);
  if (number(pin, "zero") > 0)
    text += fmt::format("  ZeRO-{:.0f}: the {} are stored once among the replicas\n", number(pin, "zero"),
                        number(pin, "zero") == 1   ? "optimizer's states"
                        : number(pin, "zero") == 2 ? "optimizer's states and gradients"
                                                   : "optimizer's states, gradients and parameters");
  if (words(pin, "recompute") != "none")
    text += fmt::format("  recompute {}: values are made again instead of kept; {:.1f} % of the step\n",
                        words(pin, "recompute"), 100 * number(part(p, "breakdown"), "recompute") / step);
  if (words(pin, "offload") != "none")
    text += fmt::format("  offload {}: {} in host memory; {:.1f} % of the step\n", words(pin, "offload"),
                        words(pin, "offload") == "all" ? "parameters and states are" : "the optimizer's states are",
                        100 * (number(b, "offload") + number(b, "optimizer")) / step);
  if (!parts.empty())
    text += fmt::format("  what binds: {} ({:.0f} % of the step)\n", parts[0].second, 100 * parts[0].first / step);
  text += "\nunits of the model\n";
  for (const Json& u : part(plan, "units")) {
    text += fmt::format("  {:>4} x {:<20} {:>12} a sample, {:>8} parameters, tensor splits {}\n", number(u, "count"),
                        words(u, "name"), scaled(number(u, "forward_flops") + number(u, "backward_flops"), "FLOP"),
                        scaled(number(u, "parameters"), ""),
                        words(u, "tensor_split").empty() ? "nothing" : words(u, "tensor_split"));
    if (number(u, "grouped_matrices") > 0)
      text +=
          fmt::format("         experts: the rows of each of {:.0f} are multiplied together; no weights are copied\n",
                      number(u, "grouped_matrices"));
  }
  const Json& others = part(plan, "candidates");
  if (others.is_array() && !others.empty()) text += "\nnext best\n";
  for (size_t k = 0; others.is_array() && k < others.size() && k < 10; ++k)
    text += fmt::format("  {:>9.4g} s  {}\n               {}\n", number(others[k], "step_seconds"),
                        words(others[k], "layout"), words(others[k], "reason"));
  const Json& s = part(plan, "search");
  text += fmt::format("\nsearch: {:.0f} layouts priced, {:.0f} did not fit, gap {:.2f} % of the cost model\n",
                      number(s, "considered"), number(s, "unfit"), 100 * number(s, "gap"));
  return text;
}

std::string comparison(const Json& plan, const Json& other) {
  const Json &a = part(part(plan, "predicted"), "breakdown"), &b = part(other, "breakdown");
  double ours = number(part(plan, "predicted"), "step_seconds"), theirs = number(other, "step_seconds");
  std::string text =
      fmt::format("plan   {:>9.4g} s  {}\nother  {:>9.4g} s  {} ({:+.1f} %{})\n", ours, words(plan, "layout"), theirs,
                  words(other, "layout"), 100 * (theirs / ours - 1), fits(other) ? "" : ", DOES NOT FIT");
  for (const auto& [name, value] : b.items()) {
    double x = number(a, name.c_str()), y = number(b, name.c_str());
    if (std::abs(x - y) > 5e-4 * ours)
      text += fmt::format("  {:<11} {:>9.4g} s -> {:>9.4g} s ({:+.4g} s)\n", name, x, y, y - x);
  }
  if (!words(other, "reason").empty()) append(text, "  ", words(other, "reason"), "\n");
  return text;
}

std::string plan_difference(const Json& a, const Json& b) {
  // Flattened, so that each difference is one line; without what follows from the rest.
  Json x = a, y = b;
  for (Json* j : {&x, &y}) {
    if (!j->is_object()) continue;
    for (const char* key : {"candidates", "inputs", "after_update", "boundary_bytes", "send_waited_seconds"})
      j->erase(key);
    if (!j->contains("stages") || !(*j)["stages"].is_array()) continue;
    for (Json& stage : (*j)["stages"]) {
      if (!stage.is_object()) continue;
      stage.erase("update"), stage.erase("traffic");
      if (!stage.contains("chunks") || !stage["chunks"].is_array()) continue;
      for (Json& chunk : stage["chunks"])
        if (chunk.is_object()) chunk.erase("parts");
    }
  }
  Json fx = x.flatten(), fy = y.flatten();
  std::string text;
  const double before = number(part(a, "predicted"), "step_seconds"),
               now = number(part(b, "predicted"), "step_seconds");
  if (fx != fy && before > 0 && now > 0)
    text += fmt::format("{:.4g} s a step -> {:.4g} s ({:+.1f} %)\n", before, now, 100 * (now / before - 1));
  auto shown = [](const Json& v) { return v.is_number_float() ? fmt::format("{:.6g}", v.get<double>()) : v.dump(); };
  for (const auto& [key, value] : fx.items()) {
    if (!fy.contains(key)) {
      append(text, "- ", key.substr(1), ": ", shown(value), "\n");
    } else if (fy[key] != value) {
      append(text, "  ", key.substr(1), ": ", shown(value), " -> ", shown(fy[key]), "\n");
    }
  }
  for (const auto& [key, value] : fy.items()) {
    if (!fx.contains(key)) append(text, "+ ", key.substr(1), ": ", shown(value), "\n");
  }
  return text;
}

}  // namespace partita
