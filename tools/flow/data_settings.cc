#include "tools/flow/data_settings.h"

#include "base/status.h"
#include "runtime/data/data_config_json.h"

namespace partita {

absl::StatusOr<runtime::DataConfig> data_settings(const DataRecipe& d, uint64_t seed) {
  runtime::DataConfig out;
  out.seed = d.seed ? static_cast<uint64_t>(*d.seed) : seed;
  if (d.kind) {
    PARTITA_ASSIGN_OR_RETURN(out.kind, runtime::parse_data_kind(enum_name(*d.kind)));
  } else if (!d.path.empty()) {
    out.kind = runtime::guess_data_kind(d.path);
  }
  out.path = d.path;
  out.columns = d.columns;
  out.shuffle = d.shuffle;
  out.prefetch = d.prefetch;
  if (d.dtype) out.dtype = *d.dtype;
  if (d.vocab) out.vocabulary = *d.vocab;
  out.shift = d.shift;
  PARTITA_ASSIGN_OR_RETURN(out.documents, runtime::parse_documents(enum_name(d.documents)));
  out.end_of_document = d.end_of_document;
  out.pad_token = d.pad_token;
  out.ignore_label = d.ignore_label;
  std::vector<runtime::WeightedSource> sources;
  for (const SourceRecipe& s : d.sources) {
    runtime::WeightedSource source{out, s.weight.value_or(0)};
    source.config.path = s.path;
    source.config.kind = runtime::guess_data_kind(s.path);
    if (s.kind || d.kind) {
      PARTITA_ASSIGN_OR_RETURN(source.config.kind, runtime::parse_data_kind(enum_name(s.kind ? *s.kind : *d.kind)));
    }
    if (s.dtype) source.config.dtype = *s.dtype;
    if (s.documents) {
      PARTITA_ASSIGN_OR_RETURN(source.config.documents, runtime::parse_documents(enum_name(*s.documents)));
    }
    if (s.end_of_document) source.config.end_of_document = s.end_of_document;
    sources.push_back(std::move(source));
  }
  out.sources = std::move(sources);
  return out;
}

}  // namespace partita
