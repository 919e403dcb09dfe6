// A plan comes back from its text as it was, and text that is none is refused by the key that is at fault.
#include "partitioner/planner/report/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/plan_difference.h"
#include "partitioner/planner/report/planned_step.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

// A plan of six devices with all that a plan may have.
Plan planned(const SearchOptions& options) {
  const Workload w = transformer(8, 2048, 1024, 32000);
  const Cluster c = cluster(1, 6, "A100-80GB");
  const Problem p = problem(w, c, 32);
  CostModel model(p);
  const auto found = search(model, options);
  EXPECT_TRUE(found.ok() && found->best) << found.status();
  Plan plan = make_plan(p, model, *found, *found->best,
                        {.model = "m.onnx",
                         .train = "t.yaml",
                         .cluster = "device: A100-80GB\n",
                         .cluster_path = "c.yaml",
                         .profiles = "p.yaml",
                         .precision = Precision::kBf16,
                         .like = {"ddp"},
                         .pins = {"data=2"},
                         .refined = "trace.json"});
  plan.predicted.program_bytes = plan.predicted.memory_bytes;
  plan.compared = {{.like = "ddp", .found = other_layout(*found->best, &*found->best)},
                   {.like = "zero9", .error = "no such preset"}};
  return plan;
}

SearchOptions stages_that_differ() {
  SearchOptions o;
  o.pin.stages = {{{"data", 2}, {"tensor", 2}}, {{"data", 2}}};
  o.pin.zero = 3, o.pin.zero_group = 2, o.pin.prefetch_blocks = 2;
  o.pin.bucket_bytes = {{{4, 1 << 25}, {16, 1 << 27}}};
  return o;
}

SearchOptions sums_in_levels() {
  SearchOptions o;
  o.pin.axes = {{"data", 2}, {"tensor", 3}}, o.pin.hierarchical_group = 2;
  return o;
}

TEST(PlanFile, ComesBackToTheByte) {
  for (const SearchOptions& options : {SearchOptions{}, stages_that_differ(), sums_in_levels()}) {
    const Plan plan = planned(options);
    const std::string text = plan_text(plan);
    const auto again = parse_plan(text);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(plan_text(*again), text);
    EXPECT_EQ(plan_difference(plan, *again), "");
    EXPECT_EQ(explanation(*again), explanation(plan));
    EXPECT_EQ(again->pin, plan.pin);
    const auto step = planned_step(plan), step_again = planned_step(*again);
    ASSERT_TRUE(step.ok() && step_again.ok()) << step.status() << step_again.status();
    EXPECT_EQ(simulate(step_again->simulation).seconds, simulate(step->simulation).seconds);
  }
}

// "/stages/1/device" as "stages[1].device".
std::string path_of(const std::string& pointer) {
  std::string path;
  for (size_t at = 1, next; at < pointer.size(); at = next + 1) {
    next = std::min(pointer.find('/', at), pointer.size());
    const std::string key = pointer.substr(at, next - at);
    const bool index = key.find_first_not_of("0123456789") == std::string::npos;
    path += index ? cat("[", key, "]") : path.empty() ? key : cat(".", key);
  }
  return path;
}

TEST(PlanFile, EveryValueIsCheckedAndNamed) {
  const Json plan = plan_json(planned(stages_that_differ()));
  const Json values = plan.flatten();
  for (const auto& [pointer, value] : values.items()) {
    Json bad = plan;
    bad[Json::json_pointer(pointer)] = {{{"neither", "text nor number"}}};
    const auto read = parse_plan(bad.dump());
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << pointer;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(path_of(pointer)));
  }
}

// Plans of before a key was added are read; those that lack what the schema requires are not.
TEST(PlanFile, WhatIsMissingIsNamed) {
  const Json plan = plan_json(planned({}));
  auto without = [&](const char* pointer) {
    Json less = plan;
    const Json::json_pointer at(pointer);
    EXPECT_EQ(less[at.parent_pointer()].erase(at.back()), 1u) << pointer;
    return parse_plan(less.dump());
  };
  for (const char* pointer :
       {"/devices", "/global_batch", "/layout", "/pin", "/micro_batches", "/stages", "/predicted/step_seconds",
        "/predicted/fits", "/predicted/breakdown", "/stages/0/capacity_bytes", "/stages/0/memory/total", "/candidates"})
    EXPECT_THAT(std::string(without(pointer).status().message()),
                testing::AllOf(HasSubstr(cat("under '", path_of(pointer), "', found none")), HasSubstr("plan again")));
  for (const char* pointer : {"/inputs", "/links", "/compress", "/stages/0/memory/stash", "/send_waited_seconds"})
    EXPECT_TRUE(without(pointer).ok()) << pointer;
  // What simulate alone needs.
  for (const char* pointer : {"/boundary_bytes", "/nodes", "/stages/0/update", "/stages/0/chunks/0/parts"}) {
    const auto older = without(pointer);
    ASSERT_TRUE(older.ok()) << older.status();
    EXPECT_THAT(std::string(planned_step(*older).status().message()), HasSubstr(path_of(pointer)));
  }
}

TEST(PlanFile, NumbersHaveTheirRange) {
  const Json plan = plan_json(planned({}));
  auto with = [&](const char* pointer, const Json& value) {
    Json other = plan;
    other[Json::json_pointer(pointer)] = value;
    return std::string(parse_plan(other.dump()).status().message());
  };
  EXPECT_THAT(with("/pin/zero", 7), HasSubstr("pin.zero: expected an integer of at least 0 and at most 3, found '7'"));
  EXPECT_THAT(with("/pin/data", 0), HasSubstr("pin.data: expected an integer of at least 1"));
  EXPECT_THAT(with("/pin/recompute", "some"),
              HasSubstr("pin.recompute: expected one of 'auto', 'none', 'selective', 'attention', 'mlp', "
                        "'all_but_attention', 'full', 'offload', 'full_offload', found"));
  EXPECT_THAT(with("/global_batch", 18446744073709551615u), HasSubstr("global_batch: expected an integer"));
  EXPECT_THAT(with("/send_seconds", -1.5), HasSubstr("send_seconds: expected a number of at least 0, found '-1.5'"));
  EXPECT_THAT(with("/stages", Json::array()), HasSubstr("stages: expected a list of at least 1, found '[]'"));
  EXPECT_THAT(with("/version", 2), HasSubstr("expected version 1, found '2'"));
  EXPECT_THAT(std::string(parse_plan(std::string(100000, '[')).status().message()),
              HasSubstr("expected a plan in JSON"));
  EXPECT_EQ(read_plan("/nowhere/plan.json").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace partita
