// The fields of a program's records, under the names and in the order of program.h: the one list for all that writes
// or reads programs whole (program_image.cc, tools/assembly/program_json.cc). `io` takes a record's fields at once:
//
//   void operator()(const auto&... fields) { (put(fields.name, fields.value), ...); }
#pragma once

#include <concepts>
#include <type_traits>

#include "base/index_bounds.h"
#include "runtime/program/program.h"

namespace partita::runtime {

template <typename T>
struct Field {
  const char* name;
  T& value;
};
template <typename T>
Field(const char*, T&) -> Field<T>;

template <typename T, typename Record>
concept Is = std::same_as<std::remove_const_t<T>, Record>;

void fields(auto& io, Is<Address> auto& a) {
  io(Field("region", a.region), Field("offset", a.offset), Field("slot_stride", a.slot_stride),
     Field("places", a.places));
}

void fields(auto& io, Is<Operand> auto& o) {
  io(Field("address", o.address), Field("dtype", o.dtype), Field("shape", o.shape));
}

void fields(auto& io, Is<Step> auto& s) {
  io(Field("id", s.id), Field("kind", s.kind), Field("device", s.device), Field("name", s.name),
     Field("operands", s.operands), Field("inputs", s.inputs), Field("params", s.params), Field("units", s.units),
     Field("bytes", s.bytes), Field("flops", s.flops), Field("origin", s.origin), Field("block", s.block));
}

void fields(auto& io, Is<ProgramSegment> auto& s) {
  io(Field("kind", s.kind), Field("chunk", s.chunk), Field("steps", s.steps));
}

void fields(auto& io, Is<ScheduleEntry> auto& e) {
  io(Field("segment", e.segment), Field("micro_batch", e.micro_batch), Field("slot", e.slot));
}

void fields(auto& io, Is<MeshAxis> auto& a) {
  io(Field("name", a.name), Field("size", a.size), Field("absent", a.absent));
}

void fields(auto& io, Is<AxisStride> auto& a) { io(Field("axis", a.axis), Field("stride", a.stride)); }

void fields(auto& io, Is<Placement> auto& p) {
  io(Field("logical", p.logical), Field("shape", p.shape), Field("local", p.local), Field("axes", p.axes));
}

void fields(auto& io, Is<InitialValue> auto& v) { io(Field("kind", v.kind), Field("a", v.a), Field("b", v.b)); }

void fields(auto& io, Is<ProgramState> auto& s) {
  io(Field("name", s.name), Field("kind", s.kind), Field("parameter", s.parameter), Field("operand", s.operand),
     Field("placement", s.placement), Field("initial", s.initial));
}

void fields(auto& io, Is<IndexBounds> auto& b) {
  io(Field("low", b.low), Field("high", b.high), Field("mark", b.mark));
}

void fields(auto& io, Is<ProgramInput> auto& i) {
  io(Field("name", i.name), Field("kind", i.kind), Field("operand", i.operand), Field("placement", i.placement),
     Field("slice_samples", i.slice_samples), Field("bounds", i.bounds));
}

void fields(auto& io, Is<ProgramOutput> auto& o) {
  io(Field("name", o.name), Field("operand", o.operand), Field("placement", o.placement));
}

void fields(auto& io, Is<CollectiveGroup> auto& g) { io(Field("axes", g.axes)); }

void fields(auto& io, Is<Program> auto& p) {
  io(Field("model", p.model), Field("target", p.target), Field("mesh", p.mesh), Field("groups", p.groups),
     Field("micro_batches", p.micro_batches), Field("micro_slices", p.micro_slices),
     Field("samples_per_step", p.samples_per_step), Field("slots", p.slots), Field("region_bytes", p.region_bytes),
     Field("segments", p.segments), Field("schedule", p.schedule), Field("states", p.states), Field("inputs", p.inputs),
     Field("outputs", p.outputs), Field("origins", p.origins), Field("kernels", p.kernels),
     Field("portable_kernels", p.portable_kernels), Field("host_kernels", p.host_kernels),
     Field("constants", p.constants));
}

}  // namespace partita::runtime
