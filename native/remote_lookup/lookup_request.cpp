#include "lookup_request.h"

namespace sharded_infer::lookups {

namespace {

bool is_width(std::int64_t bytes, std::int64_t most) {
  return bytes >= 1 && bytes <= most && (bytes & (bytes - 1)) == 0;
}

bool fits_together(const Group& group) {
  if (group.pieces.size == 0 || group.pieces.size % 4 != 0) return false;
  if (!is_width(group.length_bytes, 4) || group.lengths.size == 0 ||
      group.lengths.size % (group.length_bytes * group.entries()) != 0)
    return false;
  if (group.ids.size != 0 && (!is_width(group.id_bytes, 8) || group.ids.size % group.id_bytes != 0))
    return false;
  return group.weights.size == 0 || group.weights.size == 4 * group.id_count();
}

bool read_group(Bytes message, Group& group) {
  WireReader reader(message);
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type) || (seen >> field & 1)) return false;
    seen |= 1u << field;
    if (type == kBytes) {
      Bytes* array = field == 1   ? &group.pieces
                     : field == 2 ? &group.lengths
                     : field == 4 ? &group.ids
                     : field == 6 ? &group.weights
                                  : nullptr;
      if (array == nullptr || !reader.read_bytes(*array)) return false;
    } else if (type == kVarint && field == 7) {
      std::uint64_t bytes;
      if (!reader.read_varint(bytes) || (bytes != 0 && bytes != 2 && bytes != 4)) return false;
      group.sum_bytes = bytes == 0 ? 4 : std::int64_t(bytes);
    } else if (type == kVarint && field == 8) {
      std::uint64_t raw;
      if (!reader.read_varint(raw) || raw > 1) return false;
      group.raw = raw != 0;
    } else if (type == kVarint && (field == 3 || field == 5)) {
      std::uint64_t bytes;
      if (!reader.read_varint(bytes) || bytes > 8) return false;
      (field == 3 ? group.length_bytes : group.id_bytes) = std::int64_t(bytes);
    } else {
      return false;
    }
  }
  return fits_together(group);
}

}  // namespace

bool read_lookup(Bytes message, LookupRequest& request) {
  WireReader reader(message);
  request = {};
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type)) return false;
    if (field != 4 && (seen >> field & 1)) return false;
    seen |= 1u << field;
    if (field == 1 && type == kBytes) {
      if (!reader.read_bytes(request.model) || !is_ascii(request.model)) return false;
    } else if (field == 2 && type == kVarint) {
      if (!reader.read_varint(request.version)) return false;
    } else if (field == 3 && type == kFixed64) {
      if (!reader.read_fixed64(request.manifest)) return false;
    } else if (field == 5 && type == kFixed64) {
      if (!reader.read_fixed64(request.share)) return false;
    } else if (field == 6 && type == kVarint) {
      std::uint64_t rows;
      if (!reader.read_varint(rows) || rows > 1) return false;
      request.rows = rows != 0;
    } else if (field == 4 && type == kBytes) {
      Bytes group;
      if (request.groups.size() == kMostGroups || !reader.read_bytes(group)) return false;
      request.groups.emplace_back();
      if (!read_group(group, request.groups.back())) return false;
    } else {
      return false;
    }
  }
  return !request.groups.empty();
}

}  // namespace sharded_infer::lookups
