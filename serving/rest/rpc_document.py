"""The protocol's messages as JSON: names as they are, numbers as numbers."""

from typing import Any


def rpc_document(message: Any, *, every_field: bool = False) -> dict[str, Any]:
    """A message as plain values.

    Args:
        message: of protobuf.
        every_field: with the fields that have no value, too, apart from messages.
    """
    document: dict[str, Any] = {}
    present = {field.name for field, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        if field.name not in present and (not every_field or field.message_type is not None):
            continue
        value = getattr(message, field.name)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            of = entry.fields_by_name["value"]
            document[field.name] = {key: _plain(value[key], of, every_field) for key in value}
        elif field.is_repeated:
            document[field.name] = [_plain(item, field, every_field) for item in value]
        else:
            document[field.name] = _plain(value, field, every_field)
    return document


def _plain(value: Any, field: Any, every_field: bool) -> Any:
    if field.message_type is not None:
        return rpc_document(value, every_field=every_field)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
