// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/client.h"
#include "abi/counting.h"
#include "abi/lookup_messages.h"
#include "abi/message_size.h"
#include "abi/shares.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

EXPORTED extern const std::int64_t sharded_infer_layout_of_client[];
const std::int64_t sharded_infer_layout_of_client[] = {
    42, 0xA02C691A,
    0xB9352510, sizeof(sharded_infer::client::EndpointSettings),
    offsetof(sharded_infer::client::EndpointSettings, name),
    offsetof(sharded_infer::client::EndpointSettings, host),
    offsetof(sharded_infer::client::EndpointSettings, port),
    offsetof(sharded_infer::client::EndpointSettings, authority),
    offsetof(sharded_infer::client::EndpointSettings, server_name),
    0x10886E93, sizeof(sharded_infer::client::Settings),
    offsetof(sharded_infer::client::Settings, endpoints),
    offsetof(sharded_infer::client::Settings, endpoint_count),
    offsetof(sharded_infer::client::Settings, paths),
    offsetof(sharded_infer::client::Settings, path_count),
    offsetof(sharded_infer::client::Settings, user_agent),
    offsetof(sharded_infer::client::Settings, authorization),
    offsetof(sharded_infer::client::Settings, ca),
    offsetof(sharded_infer::client::Settings, certificate),
    offsetof(sharded_infer::client::Settings, key),
    offsetof(sharded_infer::client::Settings, max_answer_bytes),
    offsetof(sharded_infer::client::Settings, max_header_bytes),
    offsetof(sharded_infer::client::Settings, connect_seconds),
    offsetof(sharded_infer::client::Settings, keepalive_seconds),
    offsetof(sharded_infer::client::Settings, keepalive_timeout_seconds),
    offsetof(sharded_infer::client::Settings, least_backoff_seconds),
    offsetof(sharded_infer::client::Settings, most_backoff_seconds),
    0xD243B9FD, sizeof(sharded_infer::client::Outgoing),
    offsetof(sharded_infer::client::Outgoing, message),
    offsetof(sharded_infer::client::Outgoing, bytes),
    offsetof(sharded_infer::client::Outgoing, traceparent),
    offsetof(sharded_infer::client::Outgoing, timeout),
    offsetof(sharded_infer::client::Outgoing, endpoint),
    offsetof(sharded_infer::client::Outgoing, path),
    offsetof(sharded_infer::client::Outgoing, may_repeat),
    0x8A61A8B1, sizeof(sharded_infer::client::Ended),
    offsetof(sharded_infer::client::Ended, message),
    offsetof(sharded_infer::client::Ended, bytes),
    offsetof(sharded_infer::client::Ended, words),
    offsetof(sharded_infer::client::Ended, words_bytes),
    offsetof(sharded_infer::client::Ended, code),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_counting[];
const std::int64_t sharded_infer_layout_of_counting[] = {
    21, 0x245FA202,
    0x1440DCA7, sizeof(sharded_infer::AnsweredRequest),
    offsetof(sharded_infer::AnsweredRequest, samples),
    offsetof(sharded_infer::AnsweredRequest, seconds),
    offsetof(sharded_infer::AnsweredRequest, ids_outside),
    0x3DB58375, sizeof(sharded_infer::Boundaries),
    offsetof(sharded_infer::Boundaries, values),
    offsetof(sharded_infer::Boundaries, count),
    0x273AD381, sizeof(sharded_infer::AnsweredCells),
    offsetof(sharded_infer::AnsweredCells, ok),
    offsetof(sharded_infer::AnsweredCells, samples),
    offsetof(sharded_infer::AnsweredCells, last_request),
    offsetof(sharded_infer::AnsweredCells, sums),
    offsetof(sharded_infer::AnsweredCells, with_histograms),
    offsetof(sharded_infer::AnsweredCells, worker_requests),
    offsetof(sharded_infer::AnsweredCells, ids_outside),
    offsetof(sharded_infer::AnsweredCells, buckets),
    offsetof(sharded_infer::AnsweredCells, boundaries),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_lookup_messages[];
const std::int64_t sharded_infer_layout_of_lookup_messages[] = {
    50, 0xE9C777EF,
    0xC43B5292, sizeof(sharded_infer::lookups::PieceBags),
    offsetof(sharded_infer::lookups::PieceBags, pieces),
    offsetof(sharded_infer::lookups::PieceBags, lengths),
    offsetof(sharded_infer::lookups::PieceBags, ids),
    offsetof(sharded_infer::lookups::PieceBags, weights),
    offsetof(sharded_infer::lookups::PieceBags, entries),
    offsetof(sharded_infer::lookups::PieceBags, bags),
    offsetof(sharded_infer::lookups::PieceBags, id_count),
    offsetof(sharded_infer::lookups::PieceBags, sum_bytes),
    offsetof(sharded_infer::lookups::PieceBags, raw),
    0x47BECB13, sizeof(sharded_infer::lookups::Named),
    offsetof(sharded_infer::lookups::Named, model),
    offsetof(sharded_infer::lookups::Named, version),
    offsetof(sharded_infer::lookups::Named, manifest),
    0x6B6BD358, sizeof(sharded_infer::lookups::Asked),
    offsetof(sharded_infer::lookups::Asked, share),
    offsetof(sharded_infer::lookups::Asked, group_count),
    offsetof(sharded_infer::lookups::Asked, rows),
    0xE210D480, sizeof(sharded_infer::lookups::AskedPiece),
    offsetof(sharded_infer::lookups::AskedPiece, columns),
    offsetof(sharded_infer::lookups::AskedPiece, row_bytes),
    offsetof(sharded_infer::lookups::AskedPiece, format),
    offsetof(sharded_infer::lookups::AskedPiece, mean),
    0xABE5CE2B, sizeof(sharded_infer::lookups::AskedGroup),
    offsetof(sharded_infer::lookups::AskedGroup, pieces),
    offsetof(sharded_infer::lookups::AskedGroup, lengths),
    offsetof(sharded_infer::lookups::AskedGroup, ids),
    offsetof(sharded_infer::lookups::AskedGroup, weights),
    offsetof(sharded_infer::lookups::AskedGroup, entries),
    offsetof(sharded_infer::lookups::AskedGroup, bags),
    offsetof(sharded_infer::lookups::AskedGroup, id_count),
    offsetof(sharded_infer::lookups::AskedGroup, columns),
    offsetof(sharded_infer::lookups::AskedGroup, sum_bytes),
    offsetof(sharded_infer::lookups::AskedGroup, raw),
    offsetof(sharded_infer::lookups::AskedGroup, pooled),
    offsetof(sharded_infer::lookups::AskedGroup, sums),
    offsetof(sharded_infer::lookups::AskedGroup, unknown),
    0x4F27605D, sizeof(sharded_infer::lookups::Refused),
    offsetof(sharded_infer::lookups::Refused, reason),
    offsetof(sharded_infer::lookups::Refused, group),
    offsetof(sharded_infer::lookups::Refused, entry),
    offsetof(sharded_infer::lookups::Refused, expected),
    offsetof(sharded_infer::lookups::Refused, got),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_message_size[];
const std::int64_t sharded_infer_layout_of_message_size[] = {
    12, 0xCEA81E48,
    0xB24B36F2, sizeof(sharded_infer::FieldRule),
    offsetof(sharded_infer::FieldRule, message),
    offsetof(sharded_infer::FieldRule, field),
    offsetof(sharded_infer::FieldRule, holds),
    0x9AF51BA4, sizeof(sharded_infer::MessageLimits),
    offsetof(sharded_infer::MessageLimits, fields),
    offsetof(sharded_infer::MessageLimits, numbers),
    offsetof(sharded_infer::MessageLimits, rules),
    offsetof(sharded_infer::MessageLimits, count),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_shares[];
const std::int64_t sharded_infer_layout_of_shares[] = {
    31, 0xB25BDD1C,
    0x844A95C9, sizeof(sharded_infer::lookups::Watch),
    offsetof(sharded_infer::lookups::Watch, lost),
    offsetof(sharded_infer::lookups::Watch, place),
    offsetof(sharded_infer::lookups::Watch, byte),
    0x7CE3778E, sizeof(sharded_infer::lookups::Piece),
    offsetof(sharded_infer::lookups::Piece, rows),
    offsetof(sharded_infer::lookups::Piece, row_bytes),
    offsetof(sharded_infer::lookups::Piece, row_count),
    offsetof(sharded_infer::lookups::Piece, first_row),
    offsetof(sharded_infer::lookups::Piece, columns),
    offsetof(sharded_infer::lookups::Piece, format),
    offsetof(sharded_infer::lookups::Piece, mean),
    offsetof(sharded_infer::lookups::Piece, overlay),
    offsetof(sharded_infer::lookups::Piece, watches),
    offsetof(sharded_infer::lookups::Piece, watch_count),
    offsetof(sharded_infer::lookups::Piece, id_map),
    0xAAF91EE0, sizeof(sharded_infer::lookups::ShareSettings),
    offsetof(sharded_infer::lookups::ShareSettings, model),
    offsetof(sharded_infer::lookups::ShareSettings, version),
    offsetof(sharded_infer::lookups::ShareSettings, manifest),
    offsetof(sharded_infer::lookups::ShareSettings, share),
    offsetof(sharded_infer::lookups::ShareSettings, pieces),
    offsetof(sharded_infer::lookups::ShareSettings, piece_count),
    offsetof(sharded_infer::lookups::ShareSettings, most_entries),
    offsetof(sharded_infer::lookups::ShareSettings, most_answer_bytes),
    offsetof(sharded_infer::lookups::ShareSettings, run),
    offsetof(sharded_infer::lookups::ShareSettings, instruction_set),
};

}  // extern "C"
