#include "ir/recipe/read_data.h"

#include "base/cat.h"
#include "base/status.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

using Kind = YamlNode::Kind;

constexpr int64_t kLongestSide = 1 << 16;  // of a picture, in pixels

// Our own names (u16) and NumPy's (uint16).
absl::StatusOr<DType> read_element_type(const YamlNode& node, const std::string& path) {
  std::string name = node.kind == Kind::kScalar ? node.text : "";
  for (auto [numpy, ours] :
       {std::pair<std::string_view, std::string_view>{"uint", "u"}, {"int", "i"}, {"bfloat", "bf"}, {"float", "f"}}) {
    if (name.starts_with(numpy)) name = cat(ours, name.substr(numpy.size()));
  }
  DType dtype = parse_dtype(name);
  if (dtype == DType::kInvalid) return unexpected(node, path, "an element type, as in uint16 or float32");
  return dtype;
}

absl::Status parse_sources(const YamlNode& node, const std::string& path, DataRecipe& out) {
  static const Fields<SourceRecipe> kFields = {
      {"path", text(&SourceRecipe::path)},
      {"weight", number(&SourceRecipe::weight, kPositive)},
      {"kind", choice(&SourceRecipe::kind)},
      {"dtype", field(&SourceRecipe::dtype, read_element_type)},
      {"documents", choice(&SourceRecipe::documents)},
      {"end_of_document", integer(&SourceRecipe::end_of_document, 0)},
  };
  if (node.kind == Kind::kNull) return absl::OkStatus();
  constexpr size_t kMostSources = 1024;  // an epoch deals its samples out in blocks of so many
  if (node.kind != Kind::kSequence || node.items.empty() || node.items.size() > kMostSources)
    return unexpected(node, path, cat("a list of 1 to ", kMostSources, " sources {path, weight, …}"));
  for (size_t k = 0; k < node.items.size(); ++k) {
    const YamlNode& item = *node.items[k];
    SourceRecipe& source = out.sources.emplace_back();
    PARTITA_RETURN_IF_ERROR(parse_fields(item, cat(path, "[", k, "]"), kFields, source));
    if (source.path.empty()) return yaml_error(item.line, item.column, cat(path, "[", k, "]: missing key 'path'"));
    if (source.weight.has_value() != out.sources[0].weight.has_value())
      return yaml_error(item.line, item.column,
                        cat(path, "[", k, "]: expected a weight for each source or for none, found some that have one",
                            "; without weights sources come in proportion to their sizes"));
  }
  return absl::OkStatus();
}

// One number, or height and width.
absl::Status parse_resize(const YamlNode& node, const std::string& path, ImageSettings& out) {
  if (node.kind == Kind::kScalar) {
    PARTITA_ASSIGN_OR_RETURN(const int64_t shorter, read_integer(node, path, 1, kLongestSide));
    out.resize = {shorter};
    return absl::OkStatus();
  }
  if (node.kind != Kind::kSequence || node.items.size() != 2)
    return unexpected(node, path, "the shorter side, or [height, width]");
  out.resize.clear();
  for (const auto& item : node.items) {
    PARTITA_ASSIGN_OR_RETURN(const int64_t side, read_integer(*item, path, 1, kLongestSide));
    out.resize.push_back(side);
  }
  return absl::OkStatus();
}

// A number for each channel.
template <std::vector<double> ImageSettings::*member>
absl::Status parse_channels(const YamlNode& node, const std::string& path, ImageSettings& out) {
  const bool std = member == &ImageSettings::std;
  if (node.kind != Kind::kSequence || (node.items.size() != 1 && node.items.size() != 3))
    return unexpected(node, path, "a list of numbers, one for each channel (1 or 3)");
  (out.*member).clear();
  for (const auto& item : node.items) {
    PARTITA_ASSIGN_OR_RETURN(const double value, read_number(*item, path, std ? kPositive : kAnyNumber));
    (out.*member).push_back(value);
  }
  return absl::OkStatus();
}

absl::Status parse_images(const YamlNode& node, const std::string& path, ImageSettings& out) {
  static const NumberRange kShare = {"a number above 0, at most 1", [](double x) { return x > 0 && x <= 1; }};
  static const NumberRange kRatio = {"a number above 0, below 1e6", [](double x) { return x > 0 && x < 1e6; }};
  static const NumberRange kProbability = {"a number in [0, 1]", [](double x) { return x >= 0 && x <= 1; }};
  static const Fields<ImageSettings> kFields = {
      {"crop", choice(&ImageSettings::crop)},
      {"resize", parse_resize},
      {"interpolation", choice(&ImageSettings::interpolation)},
      {"scale", numbers(&ImageSettings::scale, kShare)},
      {"ratio", numbers(&ImageSettings::ratio, kRatio)},
      {"padding", integer(&ImageSettings::padding, 0, kLongestSide)},
      {"flip", number(&ImageSettings::flip, kProbability)},
      {"mean", parse_channels<&ImageSettings::mean>},
      {"std", parse_channels<&ImageSettings::std>},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (out.scale[0] > out.scale[1] || out.ratio[0] > out.ratio[1])
    return unexpected(node, path, "scale and ratio as [least, most]");
  if (!out.mean.empty() && !out.std.empty() && out.mean.size() != out.std.size())
    return unexpected(node, path, "mean and std of as many channels");
  switch (out.crop) {
    case ImageCrop::kRandomResized:
      return check_applicable(node, path, "random_resized", {"resize", "padding"}, {});
    case ImageCrop::kRandom:
      return check_applicable(node, path, "random", {"scale", "ratio"}, {});
    default:
      return check_applicable(node, path, enum_name(out.crop), {"scale", "ratio", "padding"}, {});
  }
}

// By the name of its file, where nothing else says it.
std::optional<DataKind> kind_of(const DataRecipe& d) {
  if (d.kind) return d.kind;
  if (d.path.ends_with(".npz")) return DataKind::kNpz;
  if (d.path.ends_with(".tar")) return DataKind::kWebDataset;
  return std::nullopt;
}

// What is said of tokens, and would change them.
std::vector<std::string_view> token_keys(const DataRecipe& d) {
  const DataRecipe plain;
  std::vector<std::string_view> keys;
  if (d.shift) keys.push_back("shift");
  if (d.documents != plain.documents) keys.push_back("documents");
  if (d.end_of_document) keys.push_back("end_of_document");
  if (d.pad_token != plain.pad_token) keys.push_back("pad_token");
  if (d.ignore_label != plain.ignore_label) keys.push_back("ignore_label");
  return keys;
}

}  // namespace

absl::Status parse_data(const YamlNode& node, const std::string& path, DataRecipe& out) {
  static const Fields<DataRecipe> kFields = {
      {"kind", choice(&DataRecipe::kind)},
      {"path", text(&DataRecipe::path)},
      {"columns", map_of(&DataRecipe::columns, read_text)},
      {"shuffle", boolean(&DataRecipe::shuffle)},
      {"seed", integer(&DataRecipe::seed, 0, INT64_MAX)},
      {"dtype", field(&DataRecipe::dtype, read_element_type)},
      {"vocab", integer(&DataRecipe::vocab, 1)},
      {"prefetch", integer(&DataRecipe::prefetch, 1, 1024)},
      {"shift", boolean(&DataRecipe::shift)},
      {"check_ids", boolean(&DataRecipe::check_ids)},
      {"documents", choice(&DataRecipe::documents)},
      {"end_of_document", integer(&DataRecipe::end_of_document, 0)},
      {"pad_token", integer(&DataRecipe::pad_token, 0)},
      {"ignore_label", integer(&DataRecipe::ignore_label, INT32_MIN)},
      {"sources", parse_sources},
      {"lengths", text(&DataRecipe::lengths)},
      {"images", section(&DataRecipe::images, parse_images)},
      {"workers", integer(&DataRecipe::workers, 1, 1024)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  bool synthetic = out.kind == DataKind::kSynthetic;
  if (synthetic)
    return check_applicable(node, path, "synthetic",
                            {"path", "columns", "shuffle", "sources", "lengths", "images", "workers"}, {});
  if (!out.path.empty() && !out.sources.empty())
    return yaml_error(node.line, node.column, cat(path, ": expected `path` or `sources`, found both"));
  const std::optional<DataKind> known = kind_of(out);
  const std::string_view kind = known ? enum_name(*known) : "other than synthetic";
  const bool pictures = !known || known == DataKind::kImages || known == DataKind::kWebDataset;
  if (!pictures) PARTITA_RETURN_IF_ERROR(check_applicable(node, path, kind, {"images", "workers"}, {}));
  const bool arrays = !known || known == DataKind::kNpz || known == DataKind::kNpy;
  if (!arrays) PARTITA_RETURN_IF_ERROR(check_applicable(node, path, kind, {"lengths"}, {}));
  if (!known || known == DataKind::kTokens) return check_applicable(node, path, kind, {"vocab"}, {});
  PARTITA_RETURN_IF_ERROR(check_applicable(node, path, kind, {"vocab", "dtype"}, {}));
  for (const std::string_view key : token_keys(out))
    PARTITA_RETURN_IF_ERROR(check_applicable(node, path, kind, {key}, {}));
  return absl::OkStatus();
}

}  // namespace partita
