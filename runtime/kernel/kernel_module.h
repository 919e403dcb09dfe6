// Generated code of a program, loaded into this process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/program/program.h"

namespace partita::runtime {

class KernelModule {
 public:
  // `object` is an ELF shared object that depends on nothing. It never touches the disk. DataLoss when it cannot be
  // loaded.
  static absl::StatusOr<std::unique_ptr<KernelModule>> load(std::span<const uint8_t> object);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  // NotFound when there is none of that name. Valid as long as the module.
  absl::StatusOr<KernelFunction> find(const std::string& symbol) const;

 private:
  KernelModule(void* handle, int file) : handle_(handle), file_(file) {}
  void* handle_;
  int file_;  // in memory, what the handle was loaded from
};

}  // namespace partita::runtime
