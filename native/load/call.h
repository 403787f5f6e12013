// What is asked of a load, and what is known of each of its calls. Python reads both as they lie.
#pragma once
#include <cstdint>
#include <limits>

namespace sharded_infer::load {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Settings {
  const char* address;  // numeric
  const char* port;     // numeric
  const char* authority;
  const char* path;
  const char* user_agent;
  const std::uint8_t* messages;  // one after another, each with gRPC's prefix
  const std::int64_t* offsets;   // [message_count + 1] into messages, bytes
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
  double taken;    // when this generator came to it
  double sent;     // when it was given to a connection, the last time; NaN if never
  double latency;  // from scheduled
  std::int32_t message;
  std::int32_t response_bytes;
  std::int32_t slot;  // its stream's; -1 while it waits, and once it is done
  std::uint8_t code;
  std::uint8_t refusals;  // how often a server did not process it, and said so
  std::uint8_t done;
};

struct Link {  // one of the connections asked for, over all that replaced it
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
