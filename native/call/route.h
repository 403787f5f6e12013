// A loaded version.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "abi/calls.h"
#include "reader/request.h"
#include "scheduler/scheduler.h"

namespace sharded_infer::call {

// A version, and the memory of one decoding at a time.
class Route {
 public:
  explicit Route(const RouteSettings& settings)
      : name(settings.name),
        version(settings.version),
        version_text(std::to_string(settings.version)),
        outputs(settings.outputs, settings.outputs + settings.output_count),
        mapped_tables(settings.mapped_tables, settings.mapped_tables + settings.model->mapped),
        refuses_non_finite(settings.refuses_non_finite != 0),
        queue(settings.queue),
        decoding(*settings.model) {}
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  const Model& model() const { return *decoding.model; }

  // The position of an output, or -1.
  int output_of(Bytes wanted) const {
    for (std::size_t at = 0; at < outputs.size(); ++at)
      if (outputs[at].size() == std::size_t(wanted.size) &&
          std::memcmp(outputs[at].data(), wanted.data, outputs[at].size()) == 0)
        return int(at);
    return -1;
  }

  const std::string name;
  const std::int64_t version;
  const std::string version_text;
  const std::vector<std::string> outputs, mapped_tables;
  const bool refuses_non_finite;
  scheduler::SharedQueue* const queue;
  Request decoding;
  std::int64_t calls = 0;  // that refer to it
};

}  // namespace sharded_infer::call
