// Functions of a library that is opened when it is needed, not when this is compiled or loaded.
#pragma once
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace sharded_infer {

struct FunctionAddress {
  void* address;

  template <class Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
};

class OpenedLibrary {
 public:
  // Throws std::runtime_error where it is not installed. Never closed: others may use the same one.
  explicit OpenedLibrary(const char* name)
      : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(std::string(name) + " is not installed");
  }

  FunctionAddress find(const char* symbol) const {
    const FunctionAddress function = find_if_there(symbol);
    if (function.address == nullptr)
      throw std::runtime_error(std::string(name_) + " has no " + symbol);
    return function;
  }
  FunctionAddress find_if_there(const char* symbol) const { return {dlsym(handle_, symbol)}; }

 private:
  const char* name_;
  void* handle_;
};

// A function of a library that is part of this one.
#define SHARDED_INFER_LINKED(symbol)                                   \
  [] {                                                                 \
    extern void linked_##symbol() __asm__(#symbol);                    \
    return FunctionAddress{reinterpret_cast<void*>(&linked_##symbol)}; \
  }()

}  // namespace sharded_infer
