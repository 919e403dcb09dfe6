#include "frontend/import/node_order.h"

#include <functional>
#include <queue>

#include "absl/container/flat_hash_map.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

void collect_names(const OnnxNode& node, std::vector<const std::string*>& names) {
  for (const std::string& name : node.inputs) {
    if (!name.empty()) names.push_back(&name);
  }
  for (const OnnxAttribute& a : node.attributes) {  // what subgraphs take from outside
    if (auto* g = std::get_if<std::shared_ptr<const OnnxGraph>>(&a.value)) {
      for (const OnnxNode& inner : (*g)->nodes) collect_names(inner, names);
      for (const OnnxValueInfo& v : (*g)->outputs) names.push_back(&v.name);
    }
  }
}

using Makers = absl::flat_hash_map<std::string_view, int>;

absl::Status cycle_error(const std::vector<OnnxNode>& nodes, const std::vector<std::vector<int>>& needs,
                         const std::vector<bool>& done) {
  int at = 0;
  while (done[at]) ++at;
  std::vector<int> visit(nodes.size(), -1), path;
  while (visit[at] < 0) {
    visit[at] = static_cast<int>(path.size());
    path.push_back(at);
    for (int n : needs[at]) {
      if (!done[n]) {
        at = n;
        break;
      }
    }
  }
  std::string text;
  int shown = 0;
  for (size_t k = static_cast<size_t>(visit[at]); k < path.size() && shown < 4; ++k, ++shown)
    append(text, shown ? " <- " : "", node_title(nodes[path[k]]));
  return absl::InvalidArgumentError(
      cat("the graph has a cycle: ", text, path.size() - static_cast<size_t>(visit[at]) > 4 ? " <- …" : ""));
}

absl::StatusOr<std::vector<int>> sort_nodes(const std::vector<OnnxNode>& nodes, const Makers& makers,
                                            const std::function<bool(const std::string&)>& outside) {
  size_t n = nodes.size();
  std::vector<std::vector<int>> needs(n), feeds(n);
  std::vector<int> waiting(n, 0);
  for (size_t k = 0; k < n; ++k) {
    std::vector<const std::string*> names;
    collect_names(nodes[k], names);
    size_t own = 0;
    for (const std::string& name : nodes[k].inputs) own += !name.empty();
    for (size_t j = 0; j < names.size(); ++j) {
      auto maker = makers.find(*names[j]);
      if (maker != makers.end()) {
        needs[k].push_back(maker->second);
        feeds[maker->second].push_back(static_cast<int>(k));
        ++waiting[k];
      } else if (j < own && !outside(*names[j])) {
        return absl::InvalidArgumentError(
            cat(node_title(nodes[k]), ": input ", quote(*names[j]), " is not defined anywhere"));
      }
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (size_t k = 0; k < n; ++k) {
    if (waiting[k] == 0) ready.push(static_cast<int>(k));
  }
  std::vector<int> order;
  std::vector<bool> done(n, false);
  while (!ready.empty()) {
    int k = ready.top();
    ready.pop();
    order.push_back(k);
    done[k] = true;
    for (int user : feeds[k]) {
      if (--waiting[user] == 0) ready.push(user);
    }
  }
  if (order.size() < n) return cycle_error(nodes, needs, done);
  return order;
}

}  // namespace

std::string node_title(const OnnxNode& node) {
  std::string name = !node.name.empty() ? node.name : node.outputs.empty() ? "" : node.outputs[0];
  std::string op = quote(node.domain.empty() ? node.op : cat(node.domain, "::", node.op), 80);
  return cat(op.substr(1, op.size() - 2), " ", quote(name));
}

absl::StatusOr<std::vector<int>> node_order(const std::vector<OnnxNode>& nodes,
                                            const std::function<bool(const std::string&)>& outside) {
  Makers makers;
  makers.reserve(nodes.size());
  bool sorted = true;
  for (size_t k = 0; k < nodes.size(); ++k) {
    for (const std::string& name : nodes[k].inputs) {
      if (sorted && !name.empty() && !makers.contains(name) && !outside(name)) sorted = false;
    }
    for (const std::string& name : nodes[k].outputs) {
      if (name.empty()) continue;
      auto [at, fresh] = makers.emplace(name, static_cast<int>(k));
      if (!fresh)
        return absl::InvalidArgumentError(
            cat(quote(name), " is made twice: by ", node_title(nodes[at->second]), " and by ", node_title(nodes[k])));
      if (outside(name))
        return absl::InvalidArgumentError(
            cat(node_title(nodes[k]), ": output ", quote(name), " is the name of a graph input or initializer too"));
    }
  }
  if (!sorted) return sort_nodes(nodes, makers, outside);
  std::vector<int> order(nodes.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int>(k);
  return order;
}

}  // namespace partita
