#include "frontend/generate/resnet.h"

#include <array>
#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/layers.h"

namespace partita {
namespace {

// A convolution without bias; its padding keeps the size at stride 1. First weights as torchvision: He, by outputs.
std::string conv(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t out, int64_t kernel,
                 int64_t stride) {
  std::string weight = g.weight(name + ".weight", {out, in, kernel, kernel},
                                Fill::normal(std::sqrt(2.0 / static_cast<double>(out * kernel * kernel))));
  int64_t pad = kernel / 2;
  std::vector<int64_t> ones = {1, 1}, kernels = {kernel, kernel}, pads = {pad, pad, pad, pad},
                       strides = {stride, stride};
  return g.add_node("Conv", {x, weight},
                    {{"auto_pad", "NOTSET"},
                     {"dilations", ones},
                     {"group", 1},
                     {"kernel_shape", kernels},
                     {"pads", pads},
                     {"strides", strides}});
}

std::string batch_norm(GraphWriter& g, const std::string& name, const std::string& x, int64_t channels) {
  std::string weight = g.weight(name + ".weight", {channels}, Fill::ones()),
              bias = g.weight(name + ".bias", {channels}, Fill::zeros());
  std::string mean = g.statistic(name + ".running_mean", {channels}, Fill::zeros()),
              variance = g.statistic(name + ".running_var", {channels}, Fill::ones());
  std::vector<std::string> out = g.add_nodes("BatchNormalization", {x, weight, bias, mean, variance}, 3,
                                             {{"epsilon", 1e-5}, {"momentum", 0.9}, {"training_mode", 1}});
  return out[0];
}

std::string relu(GraphWriter& g, const std::string& x) { return g.add_node("Relu", {x}); }

// `bottleneck`: 1x1, 3x3, 1x1 with four times the channels behind, else two 3x3.
std::string block(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t width,
                  int64_t stride, bool bottleneck) {
  int64_t out = bottleneck ? 4 * width : width;
  std::string y;
  if (bottleneck) {
    y = relu(g, batch_norm(g, name + ".bn1", conv(g, name + ".conv1", x, in, width, 1, 1), width));
    y = relu(g, batch_norm(g, name + ".bn2", conv(g, name + ".conv2", y, width, width, 3, stride), width));
    y = batch_norm(g, name + ".bn3", conv(g, name + ".conv3", y, width, out, 1, 1), out);
  } else {
    y = relu(g, batch_norm(g, name + ".bn1", conv(g, name + ".conv1", x, in, width, 3, stride), width));
    y = batch_norm(g, name + ".bn2", conv(g, name + ".conv2", y, width, width, 3, 1), width);
  }
  std::string skip = x;
  if (stride != 1 || in != out)
    skip = batch_norm(g, name + ".downsample.1", conv(g, name + ".downsample.0", x, in, out, 1, stride), out);
  return relu(g, g.add_node("Add", {y, skip}));
}

}  // namespace

absl::StatusOr<GraphWriter> generate_resnet(const ResnetSpec& s) {
  if (s.depth != 18 && s.depth != 34 && s.depth != 50)
    return absl::InvalidArgumentError(cat("--depth: expected 18, 34 or 50, found ", s.depth));
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--classes", s.classes}, {"--image", s.image}}));
  if (s.batch != kBatchSymbol) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", s.batch}}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x 64 x image x image", {s.batch, 64, s.image, s.image}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x classes", {s.batch, s.classes}));
  GraphWriter g("resnet");
  std::string x = g.input("x", Element::kFloat, {s.batch, 3, s.image, s.image});
  x = relu(g, batch_norm(g, "bn1", conv(g, "conv1", x, 3, 64, 7, 2), 64));
  std::vector<int64_t> three = {3, 3}, two = {2, 2}, ones = {1, 1};
  x = g.add_node("MaxPool", {x},
                 {{"auto_pad", "NOTSET"},
                  {"ceil_mode", 0},
                  {"dilations", ones},
                  {"kernel_shape", three},
                  {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                  {"storage_order", 0},
                  {"strides", two}});
  std::array<int64_t, 4> blocks =
      s.depth == 18 ? std::array<int64_t, 4>{2, 2, 2, 2} : std::array<int64_t, 4>{3, 4, 6, 3};
  bool bottleneck = s.depth == 50;
  int64_t channels = 64;
  for (int64_t stage = 0; stage < 4; ++stage) {
    int64_t width = int64_t{64} << stage;
    for (int64_t k = 0; k < blocks[stage]; ++k) {
      x = block(g, cat("layer", stage + 1, ".", k), x, channels, width, k == 0 && stage > 0 ? 2 : 1, bottleneck);
      channels = bottleneck ? 4 * width : width;
    }
  }
  x = g.add_node("ReduceMean", {x, g.ints({-1, -2})}, {{"keepdims", 1}, {"noop_with_empty_axes", 0}});
  dense(g, "fc", g.reshape(x, {-1, channels}), channels, s.classes, 0.02, "logits");
  g.output("logits", {s.batch, s.classes});
  PARTITA_RETURN_IF_ERROR(g.status());
  return g;
}

}  // namespace partita
