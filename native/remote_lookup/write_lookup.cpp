// Writes LookupRequests (protos/sharded_infer/v1/shard_host.proto), numbers as narrow as they fit.
#include <cstdint>
#include <cstring>

#include "abi/lookup_messages.h"
#include "base/wire.h"

namespace sharded_infer::lookups {

namespace {

// Tags, widths and lengths of a group's fields.
constexpr std::int64_t kGroupHeadBytes = 64;

std::uint8_t* put_fixed64(std::uint32_t field, std::uint64_t number, std::uint8_t* to) {
  to = put_tag(field, kFixed64, to);
  std::memcpy(to, &number, sizeof number);
  return to + sizeof number;
}

std::int64_t width_of(const std::int64_t* numbers, std::int64_t count) {
  // The highest bit of any is that of the largest.
  std::uint64_t all = 0;
  for (std::int64_t at = 0; at < count; ++at) all |= std::uint64_t(numbers[at]);
  return all >> 32 ? 8 : all >> 16 ? 4 : all >> 8 ? 2 : 1;
}

template <class Number>
std::uint8_t* narrow(const std::int64_t* from, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t at = 0; at < count; ++at) {
    const auto number = Number(from[at]);
    std::memcpy(to + at * std::int64_t(sizeof number), &number, sizeof number);
  }
  return to + count * std::int64_t(sizeof(Number));
}

std::uint8_t* put_numbers(std::uint32_t field, const std::int64_t* from, std::int64_t count,
                          std::int64_t width, std::uint8_t* to) {
  // As protobuf writes it: no empty fields.
  if (count != 0) to = put_head(field, count * width, to);
  switch (width) {
    case 1: to = narrow<std::uint8_t>(from, count, to); break;
    case 2: to = narrow<std::uint16_t>(from, count, to); break;
    case 4: to = narrow<std::uint32_t>(from, count, to); break;
    default: to = narrow<std::uint64_t>(from, count, to);
  }
  *to++ = std::uint8_t((field + 1) << 3 | kVarint);
  *to++ = std::uint8_t(width);
  return to;
}

std::int64_t field_bytes(std::int64_t bytes) {
  return bytes == 0 ? 0 : 1 + varint_bytes(std::uint64_t(bytes)) + bytes;
}

std::int64_t write_lookup(const Named& named, const Asked& asked, const PieceBags* groups,
                          std::uint8_t* to) {
  const std::uint8_t* const begin = to;
  const auto model_bytes = std::int64_t(std::strlen(named.model));
  to = put_head(1, model_bytes, to);
  std::memcpy(to, named.model, std::size_t(model_bytes));
  to = put_varint(named.version, put_tag(2, kVarint, to + model_bytes));
  to = put_fixed64(3, named.manifest, to);
  for (const PieceBags* group = groups; group != groups + asked.group_count; ++group) {
    const std::int64_t lengths = group->entries * group->bags;
    const std::int64_t length_bytes = width_of(group->lengths, lengths);
    const std::int64_t id_bytes = width_of(group->ids, group->id_count);
    std::int64_t bytes = field_bytes(4 * group->entries) + field_bytes(lengths * length_bytes) +
                         field_bytes(group->id_count * id_bytes) + 4;
    if (group->weights != nullptr) bytes += field_bytes(4 * group->id_count);
    if (group->sum_bytes != 4) bytes += 2;
    if (group->raw != 0) bytes += 2;
    to = put_head(4, bytes, to);
    to = put_head(1, 4 * group->entries, to);
    to = narrow<std::uint32_t>(group->pieces, group->entries, to);
    to = put_numbers(2, group->lengths, lengths, length_bytes, to);
    to = put_numbers(4, group->ids, group->id_count, id_bytes, to);
    if (group->weights != nullptr && group->id_count != 0) {
      to = put_head(6, 4 * group->id_count, to);
      std::memcpy(to, group->weights, std::size_t(4 * group->id_count));
      to += 4 * group->id_count;
    }
    if (group->sum_bytes != 4)
      to = put_varint(std::uint64_t(group->sum_bytes), put_tag(7, kVarint, to));
    if (group->raw != 0) to = put_varint(1, put_tag(8, kVarint, to));
  }
  if (asked.share != 0) to = put_fixed64(5, asked.share, to);
  if (asked.rows != 0) to = put_varint(1, put_tag(6, kVarint, to));
  return to - begin;
}

}  // namespace
}  // namespace sharded_infer::lookups

using namespace sharded_infer::lookups;

extern "C" {

std::int64_t sharded_infer_lookup_most_bytes(const Named* named, const Asked* asked,
                                             std::int64_t hosts, const PieceBags* groups) {
  std::int64_t bytes = hosts * (kGroupHeadBytes + std::int64_t(std::strlen(named->model)));
  for (std::int64_t host = 0; host < hosts; ++host)
    for (const PieceBags* end = groups + asked[host].group_count; groups != end; ++groups)
      bytes += kGroupHeadBytes + 4 * groups->entries * (1 + groups->bags) +
               groups->id_count * (groups->weights == nullptr ? 8 : 12);
  return bytes;
}

void sharded_infer_lookup_write(const Named* named, const Asked* asked, std::int64_t hosts,
                                const PieceBags* groups, std::uint8_t* to, std::int64_t* bytes) {
  for (std::int64_t host = 0; host < hosts; ++host) {
    bytes[host] = write_lookup(*named, asked[host], groups, to);
    to += bytes[host];
    groups += asked[host].group_count;
  }
}
}
