// See abi/load.h.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "call.h"
#include "load.h"

using sharded_infer::load::Load;
using sharded_infer::load::Report;
using sharded_infer::load::Settings;

namespace {

constexpr std::size_t kErrorBytes = 256;

void copy_error(const std::exception& error, char* to) {
  std::snprintf(to, kErrorBytes, "%s", error.what());
}

}  // namespace

extern "C" {

Load* sharded_infer_load_create(const Settings* settings, char* error) {
  try {
    return new Load(*settings);
  } catch (const std::exception& caught) {
    copy_error(caught, error);
    return nullptr;
  }
}

std::int32_t sharded_infer_load_step(Load* load, double seconds, char* error) {
  try {
    return load->step(seconds) ? 1 : 0;
  } catch (const std::exception& caught) {
    copy_error(caught, error);
    return -1;
  }
}

void sharded_infer_load_report(const Load* load, Report* report) { *report = load->report(); }

const void* sharded_infer_load_response(const Load* load, std::int64_t message,
                                        std::int64_t* bytes) {
  const std::string* response = load->response(message);
  *bytes = response == nullptr ? 0 : static_cast<std::int64_t>(response->size());
  return response == nullptr ? nullptr : response->data();
}

const char* sharded_infer_load_error(const Load* load, std::int32_t code) {
  return load->error(static_cast<std::size_t>(code)).c_str();
}

void sharded_infer_load_destroy(Load* load) { delete load; }
}
