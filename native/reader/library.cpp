// The C interface of decoding and counting, which Python calls through ctypes.
#include "base/counting.h"
#include "header.h"
#include "message_size.h"
#include "request.h"

#define EXPORTED __attribute__((visibility("default")))

using sharded_infer::Bytes;

extern "C" {

// Fills a model's table of names; see model.h.
EXPORTED void sharded_infer_index_names(const sharded_infer::Model* model) {
  sharded_infer::index_names(*model);
}

// 1 when the message is usual; see header.h.
EXPORTED std::int32_t sharded_infer_read_header(const std::uint8_t* message, std::int64_t size,
                                                sharded_infer::Header* header) {
  return sharded_infer::read_header(Bytes{message, size}, *header);
}

// 1 when the message is usual; see header.h.
EXPORTED std::int32_t sharded_infer_read_predict_header(const std::uint8_t* message,
                                                        std::int64_t size,
                                                        sharded_infer::Header* header) {
  return sharded_infer::read_predict_header(Bytes{message, size}, *header);
}

// 1 when the JSON is usual; see header.h.
EXPORTED std::int32_t sharded_infer_read_json_header(const std::uint8_t* json, std::int64_t size,
                                                     sharded_infer::JsonHeader* header) {
  return sharded_infer::read_json_header(Bytes{json, size}, *header);
}

// 1 when the message is usual; see request.h.
EXPORTED std::int32_t sharded_infer_scan_predict(sharded_infer::Request* request,
                                                 const std::uint8_t* message, std::int64_t size) {
  return request->scan_predict(Bytes{message, size});
}

// 1 when the message is usual; see request.h.
EXPORTED std::int32_t sharded_infer_scan(sharded_infer::Request* request,
                                         const std::uint8_t* message, std::int64_t size) {
  return request->scan(Bytes{message, size});
}

// 1 when the body is usual; see request.h.
EXPORTED std::int32_t sharded_infer_scan_body(sharded_infer::Request* request,
                                              const std::uint8_t* body, std::int64_t size,
                                              std::int64_t json_bytes) {
  return request->scan_body(Bytes{body, size}, json_bytes);
}

// 1 when the tensors are usual; see request.h.
EXPORTED std::int32_t sharded_infer_scan_tensors(sharded_infer::Request* request,
                                                 const sharded_infer::NamedTensor* tensors,
                                                 std::int64_t count) {
  return request->scan_tensors(tensors, count);
}

// 1 when what was scanned is accepted, and its unknown ids are counted; see request.h. The message,
// or the tensors' bytes, must still be there.
EXPORTED std::int32_t sharded_infer_fill(sharded_infer::Request* request, std::int64_t* out) {
  if (!request->fill(out)) return 0;
  request->count_unknown();
  return 1;
}

sharded_infer::Excess sharded_infer_check_size(const sharded_infer::MessageLimits* limits,
                                               const std::uint8_t* message, std::int64_t size) {
  return sharded_infer::check_size(*limits, Bytes{message, size});
}

void sharded_infer_count_unknown(double* cells, const std::int64_t* counts, std::int64_t tables) {
  sharded_infer::count_unknown(cells, counts, tables);
}

void sharded_infer_count_answered(double* cells, const sharded_infer::AnsweredCells* where,
                                  const sharded_infer::AnsweredRequest* requests,
                                  std::int64_t count, double now) {
  sharded_infer::count_answered(cells, *where, requests, count, now);
}
}
