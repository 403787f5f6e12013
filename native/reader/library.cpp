// The C interface of decoding and counting.
#include "base/counting.h"
#include "header.h"
#include "message_size.h"
#include "request.h"

namespace sharded_infer {
namespace {

// Passes on whether a message was scanned; `fill` does not follow for others.
bool scanned(Request& request, bool is_scanned) {
  if (!is_scanned) request.trim();
  return is_scanned;
}

}  // namespace

extern "C" {

void sharded_infer_index_names(const Model* model) { index_names(*model); }

bool sharded_infer_read_header(const std::uint8_t* message, std::int64_t bytes, Header* header) {
  return read_header({message, bytes}, *header);
}

bool sharded_infer_read_predict_header(const std::uint8_t* message, std::int64_t bytes,
                                       Header* header) {
  return read_predict_header({message, bytes}, *header);
}

Request* sharded_infer_request_create(const Model* model) { return new Request(*model); }
void sharded_infer_request_destroy(Request* request) { delete request; }
const InputParts* sharded_infer_request_parts(const Request* request) { return request; }

bool sharded_infer_scan(Request* request, const std::uint8_t* message, std::int64_t bytes) {
  return scanned(*request, request->scan({message, bytes}));
}

bool sharded_infer_scan_predict(Request* request, const std::uint8_t* message, std::int64_t bytes) {
  return scanned(*request, request->scan_predict({message, bytes}));
}

bool sharded_infer_fill(Request* request, std::int64_t* out) {
  const bool is_filled = request->fill(out);
  request->trim();
  if (!is_filled) return false;
  request->count_unknown();
  return true;
}
}
}  // namespace sharded_infer

using sharded_infer::Bytes;

extern "C" {

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
