#include "runtime/data/data_config_json.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

using nlohmann::json;

constexpr size_t kMaxSources = 1024;

absl::Status check_keys(const json& j, const std::vector<std::string>& known) {
  for (const auto& [key, value] : j.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return absl::InvalidArgumentError(
          cat("unknown key ", quote(key), "; the nearest known one is ", quote(nearest_name(key, known))));
    }
  }
  return absl::OkStatus();
}

const std::vector<std::string>& config_keys() {
  static const std::vector<std::string> kKeys = {
      "kind",         "path",         "columns",         "shuffle",  "seed",    "epochs",    "sequence",
      "dtype",        "vocabulary",   "shift",           "skip",     "limit",   "documents", "pad_token",
      "ignore_label", "header_bytes", "end_of_document", "pad_tail", "sources", "prefetch",  "shifted_inside",
      "check_ids",    "images",       "workers",         "lengths"};
  return kKeys;
}

absl::StatusOr<DocumentMode> parse_documents(const std::string& text) {
  if (const std::optional<DocumentMode> mode = parse_enum<DocumentMode>(text)) return *mode;
  return absl::InvalidArgumentError(cat("documents: ", quote(text), "; expected join, separate, pack or pad"));
}

json images_to_json(const ImageSettings& s) {
  return {{"crop", enum_name(s.crop)},
          {"resize", s.resize},
          {"interpolation", enum_name(s.interpolation)},
          {"scale", s.scale},
          {"ratio", s.ratio},
          {"padding", s.padding},
          {"flip", s.flip},
          {"mean", s.mean},
          {"std", s.std}};
}

absl::StatusOr<ImageSettings> images_from_json(const json& j) {
  ImageSettings s;
  try {
    const auto crop = parse_enum<ImageCrop>(j.at("crop").get<std::string>());
    const auto filter = parse_enum<ImageFilter>(j.at("interpolation").get<std::string>());
    if (!crop || !filter) return absl::DataLossError("images: unknown crop or interpolation");
    s.crop = *crop;
    s.interpolation = *filter;
    s.resize = j.at("resize").get<std::vector<int64_t>>();
    s.scale = j.at("scale").get<std::array<double, 2>>();
    s.ratio = j.at("ratio").get<std::array<double, 2>>();
    s.padding = j.at("padding").get<int64_t>();
    s.flip = j.at("flip").get<double>();
    s.mean = j.at("mean").get<std::vector<double>>();
    s.std = j.at("std").get<std::vector<double>>();
  } catch (const json::exception& e) {
    return absl::DataLossError(cat("images: ", e.what()));
  }
  constexpr int64_t kLargest = 1 << 16;
  bool good = s.resize.size() <= 2 && s.padding >= 0 && s.padding <= kLargest && s.scale[0] > 0 &&
              s.scale[0] <= s.scale[1] && s.scale[1] <= 1 && s.ratio[0] > 0 && s.ratio[0] <= s.ratio[1] &&
              s.ratio[1] < 1e6 && s.flip >= 0 && s.flip <= 1;
  for (int64_t side : s.resize) good = good && side >= 1 && side <= kLargest;
  for (double x : s.std) good = good && x > 0;
  if (!good) return absl::DataLossError("images: a number is out of its range");
  return s;
}

}  // namespace

DType parse_element_type(std::string_view name) {
  for (auto [numpy, ours] :
       {std::pair<std::string_view, std::string_view>{"uint", "u"}, {"int", "i"}, {"float", "f"}}) {
    if (name.starts_with(numpy)) return parse_dtype(cat(ours, name.substr(numpy.size())));
  }
  return parse_dtype(name);
}

json to_json(const DataConfig& c) {
  json j = {{"kind", enum_name(c.kind)},
            {"path", c.path},
            {"columns", c.columns},
            {"shuffle", c.shuffle},
            {"seed", c.seed},
            {"epochs", c.epochs},
            {"sequence", c.sequence},
            {"vocabulary", c.vocabulary}};
  if (c.dtype != DType::kInvalid) j["dtype"] = dtype_name(c.dtype);
  if (c.shift) j["shift"] = *c.shift;
  if (!c.shifted_inside.empty()) j["shifted_inside"] = c.shifted_inside;
  if (!c.check_ids) j["check_ids"] = false;
  if (c.skip != 0) j["skip"] = c.skip;
  if (c.limit != 0) j["limit"] = c.limit;
  if (c.header_bytes != 0) j["header_bytes"] = c.header_bytes;
  if (c.pad_tail) j["pad_tail"] = true;
  if (c.prefetch != DataConfig().prefetch) j["prefetch"] = c.prefetch;
  if (!(c.images == ImageSettings{})) j["images"] = images_to_json(c.images);
  if (c.workers != 0) j["workers"] = c.workers;
  if (!c.lengths.empty()) j["lengths"] = c.lengths;
  for (const WeightedSource& s : c.sources) {
    json& source = j["sources"].emplace_back(to_json(s.config));
    if (s.weight > 0) source["weight"] = s.weight;
  }
  if (c.documents == DocumentMode::kJoin) return j;
  j["documents"] = enum_name(c.documents);
  j["pad_token"] = c.pad_token;
  j["ignore_label"] = c.ignore_label;
  if (c.end_of_document) j["end_of_document"] = *c.end_of_document;
  return j;
}

namespace {

absl::StatusOr<std::vector<WeightedSource>> sources_from_json(const json& list) {
  if (!list.is_array() || list.empty() || list.size() > kMaxSources)
    return absl::DataLossError(cat("sources: expected a list of 1 to ", kMaxSources));
  std::vector<WeightedSource> sources;
  for (json entry : list) {
    const std::string who = cat("source ", sources.size());
    WeightedSource& s = sources.emplace_back();
    if (entry.is_object() && entry.contains("weight")) {
      s.weight = entry["weight"].is_number() ? entry["weight"].get<double>() : 0;
      if (!(s.weight > 0) || !std::isfinite(s.weight))
        return absl::DataLossError(cat(who, ": weight: expected a number above 0"));
      entry.erase("weight");
    }
    if (entry.is_object() && entry.contains("sources"))
      return absl::DataLossError(cat(who, ": sources inside a source"));
    auto config = data_config_from_json(entry);
    if (!config.ok()) return with_context(config.status(), who);
    s.config = *std::move(config);
  }
  return sources;
}

}  // namespace

absl::StatusOr<DataConfig> data_config_from_json(const json& j) {
  DataConfig c;
  if (!j.is_object()) return absl::DataLossError("data settings: expected an object");
  PARTITA_RETURN_IF_ERROR(check_keys(j, config_keys()));
  try {
    if (j.contains("kind")) {
      PARTITA_ASSIGN_OR_RETURN(c.kind, parse_data_kind(j.at("kind").get<std::string>()));
    }
    c.path = j.value("path", "");
    c.columns = j.value("columns", c.columns);
    c.shuffle = j.value("shuffle", false);
    c.seed = j.value("seed", uint64_t{0});
    c.epochs = j.value("epochs", int64_t{1});
    c.sequence = j.value("sequence", int64_t{0});
    if (j.contains("dtype")) {
      const std::string name = j.at("dtype").get<std::string>();
      c.dtype = parse_element_type(name);
      if (c.dtype == DType::kInvalid)
        return absl::InvalidArgumentError(cat("dtype: ", quote(name), " is no element type, as uint16 is"));
    }
    c.vocabulary = j.value("vocabulary", int64_t{0});
    c.skip = j.value("skip", int64_t{0});
    c.limit = j.value("limit", int64_t{0});
    c.header_bytes = j.value("header_bytes", int64_t{0});
    c.pad_tail = j.value("pad_tail", false);
    c.prefetch = j.value("prefetch", c.prefetch);
    c.workers = std::max(j.value("workers", int64_t{0}), int64_t{0});
    c.lengths = j.value("lengths", std::string());
    if (j.contains("images")) {
      PARTITA_ASSIGN_OR_RETURN(c.images, images_from_json(j.at("images")));
    }
    if (j.contains("sources")) {
      PARTITA_ASSIGN_OR_RETURN(c.sources, sources_from_json(j.at("sources")));
    }
    if (j.contains("shift")) c.shift = j.at("shift").get<bool>();
    c.shifted_inside = j.value("shifted_inside", c.shifted_inside);
    c.check_ids = j.value("check_ids", true);
    PARTITA_ASSIGN_OR_RETURN(c.documents, parse_documents(j.value("documents", std::string("join"))));
    if (j.contains("end_of_document")) c.end_of_document = j.at("end_of_document").get<int64_t>();
    c.pad_token = j.value("pad_token", c.pad_token);
    c.ignore_label = j.value("ignore_label", c.ignore_label);
  } catch (const json::exception& e) {
    return absl::DataLossError(cat("data settings: ", e.what()));
  }
  return c;
}

std::string settings_of(const DataConfig& config) {
  json settings = to_json(config);
  for (const char* of_host : {"path", "prefetch", "workers"}) settings.erase(of_host);
  if (settings.contains("sources")) {
    for (json& source : settings["sources"]) source.erase("path");
  }
  return settings.dump();
}

std::string describe_data(const DataConfig& c) {
  std::string text = cat(enum_name(c.kind), c.shuffle ? cat(" shuffled by ", c.seed) : "", " skip ", c.skip, " limit ",
                         c.limit, " sequence ", c.sequence);
  if (c.documents != DocumentMode::kJoin) append(text, " documents ", enum_name(c.documents));
  if (c.dtype != DType::kInvalid) append(text, " of ", dtype_name(c.dtype));
  for (const WeightedSource& s : c.sources) append(text, " source ", s.weight);
  if (!c.lengths.empty()) append(text, " lengths ", c.lengths);
  if (!(c.images == ImageSettings{})) append(text, " images ", images_to_json(c.images).dump());
  return text;
}

}  // namespace partita::runtime
