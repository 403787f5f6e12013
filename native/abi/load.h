// A load of unary gRPC calls; see load/load.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer::load {

class Load;

struct Settings {
  const char* address;  // numeric
  const char* port;     // numeric
  const char* authority;
  const char* path;
  const char* user_agent;
  const std::uint8_t* messages;  // one after another, each with gRPC's prefix
  const std::int64_t* offsets;   // [message_count + 1] into messages
  std::int64_t message_count;
  const double* schedule;    // [call_count] seconds, ascending; null makes a closed loop
  std::int64_t call_count;   // of the schedule; of a closed loop the most, or -1
  std::int64_t concurrency;  // of a closed loop
  double seconds;            // of a closed loop
  double deadline_seconds;   // infinity for none
  double drain_seconds;
  double connect_seconds;
  std::int64_t connections;
  std::int32_t keep_responses;
  const char* authorization;  // the header's value; null for none
};

// All times are seconds from the start.
struct Call {
  double scheduled;
  double taken;    // when the generator came to it
  double sent;     // when it was given to a connection, the last time; NaN if never
  double latency;  // from scheduled
  std::int32_t message;
  std::int32_t response_bytes;
  std::int32_t slot;  // its stream's; -1 while it waits, and once it is done
  std::uint8_t code;
  std::uint8_t refusals;  // how often a server did not process it, and said so
  std::uint8_t done;
};

// A connection that was asked for, over all that replaced it.
struct Link {
  std::int64_t calls;
  std::int64_t reconnects;
};

struct Report {
  const Call* calls;
  std::int64_t call_count;
  const Link* links;
  double seconds;  // from the start to the end of the last call
};

}  // namespace sharded_infer::load

extern "C" {

// Null where it cannot run, with the reason in `error`, of 256 bytes. What the settings point to
// must outlive the load.
EXPORTED sharded_infer::load::Load* sharded_infer_load_create(
    const sharded_infer::load::Settings* settings, char error[]);
// Runs for about `seconds`. Returns 1 once the load is over, 0 before, and -1 with a reason in
// `error`.
EXPORTED std::int32_t sharded_infer_load_step(sharded_infer::load::Load* load, double seconds,
                                              char error[]);
// The report so far, valid until the load runs on or is destroyed.
EXPORTED void sharded_infer_load_report(const sharded_infer::load::Load* load,
                                        sharded_infer::load::Report* report);
// The first OK message that answered a message, or null.
EXPORTED const void* sharded_infer_load_response(const sharded_infer::load::Load* load,
                                                 std::int64_t message, std::int64_t bytes[]);
// The first text that came with a status code of gRPC (below 17), percent-encoded.
EXPORTED const char* sharded_infer_load_error(const sharded_infer::load::Load* load,
                                              std::int32_t code);
EXPORTED void sharded_infer_load_destroy(sharded_infer::load::Load* load);
}
