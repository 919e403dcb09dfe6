// Small problems for the search: profiles, clusters, a transformer's workload.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "partitioner/planner/search/search.h"

namespace partita {

const ProfileLibrary& library();

// Nodes of one built-in device.
Cluster cluster(int64_t nodes, int64_t per_node, const std::string& device);

// Nodes of eight A100 on one switch, with a network that cluster.yaml describes so: "bandwidth: 6.25GB/s".
Cluster nodes_of_eight(int64_t nodes, const std::string& network);

// What the workload's units read each of the one before: `input` of them.
std::vector<CrossingValue> in_a_chain(const Workload& workload);

// A transformer of `blocks` blocks: d wide, s long, vocabulary v.
Workload transformer(int blocks, double d, double s, double v);

Problem problem(const Workload& w, const Cluster& c, int64_t batch);

// Of a step of the layout that is found; 1e300 where none is.
double seconds_found(CostModel& model, const SearchOptions& options);

// Programs compiled here, of any workload.
struct OfOwnPrograms {
  OfOwnPrograms(Workload w, Cluster c, int64_t batch)
      : workload(std::move(w)), cluster(std::move(c)), problem(made(workload, cluster, batch)), model(problem) {}

  static Problem made(const Workload& w, const Cluster& c, int64_t batch) {
    Problem p = partita::problem(w, c, batch);
    p.own_programs = true;
    return p;
  }
  const Workload workload;
  const Cluster cluster;
  const Problem problem;
  CostModel model;
};

// Programs compiled here, of a transformer of 7B: on a cluster, or over nodes with one network card each, over which
// what is sent takes longer than most of what may hide it.
class OwnPrograms : public testing::Test {
 protected:
  OwnPrograms(int64_t nodes, int64_t batch) : OwnPrograms(nodes_of_eight(nodes, "nics: 1, rate: 100Gb/s"), batch) {}
  OwnPrograms(Cluster cluster, int64_t batch) : cluster_(std::move(cluster)) {
    problem_ = problem(workload_, cluster_, batch);
    problem_.own_programs = true;
  }
  Workload workload_ = transformer(32, 4096, 2048, 32000);
  const Cluster cluster_;
  Problem problem_;
};

}  // namespace partita
