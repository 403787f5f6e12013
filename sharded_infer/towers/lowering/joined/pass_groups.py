"""Groups of a user's stage's passes that can run in one call."""

from collections.abc import Sequence

from torch.fx import GraphModule, Node

from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.joined.pair_functions import PairFunction, pair_function
from sharded_infer.towers.lowering.rewriting import module_of
from sharded_infer.towers.lowering.sequences.attention import HeadsPass
from sharded_infer.towers.lowering.sequences.row_steps import RowPass
from sharded_infer.towers.lowering.sequences.views import Layout, Rows, Source, Views


class PassGroups:
    """The passes of a program, and their inputs.

    Args:
        program: runs for one request, with its passes fused.
        views: from runs with two lengths.

    Attributes:
        views: of its nodes.
        pairs: biases of pairs of positions, by their last node.
        reads: inputs of each pass, without None.
        owners: the pass of each result.
        found: passes that can run in one call, in the graph's order.
    """

    def __init__(self, program: GraphModule, views: Views) -> None:
        self._program = program
        self.views = views
        self.pairs: dict[Node, PairFunction] = {}
        self.reads: dict[Node, list[Source]] = {}
        self.owners: dict[Node, Node] = {}
        # Number of calls before a node, each of which waits for the one before.
        self._levels: dict[Node, int] = {}
        # Lengths of a pass's sequence.
        self._lengths: dict[Node, tuple[int, ...] | None] = {}
        self._find_pairs()
        groups: dict[tuple[int, tuple[int, ...] | None], list[Node]] = {}
        for node in program.graph.nodes:
            read = self._read(node)
            if read is None:
                self._levels[node] = self._level(node)
                continue
            self.reads[node] = read
            self.owners[node] = node
            if module_of(self._program, node, RowPass) is not None:
                self.owners |= dict.fromkeys(node.users, node)
            owners = [self.owners.get(one.base, one.base) for one in read]
            self._levels[node] = max((self._levels[one] for one in owners), default=0)
            lengths = self._lengths[node] = self._lengths_of(node, owners)
            groups.setdefault((self._levels[node], lengths), []).append(node)
        self.found = list(groups.values())

    def layout(self, node: Node) -> Layout:
        """Layout of a pass's input or result."""
        found = self.views.layout(node)
        if found is None:
            raise InternalError(f"{node}: passes read fp32 rows of one request alone")
        return found

    def has_one_row(self, node: Node) -> bool:
        """True if a pass has one row or query, not one for each position."""
        layout = self.views.layout(node.args[0]) if node.args else None
        return layout is not None and layout.rows is Rows.ONE

    def _find_pairs(self) -> None:
        for node in self._program.graph.nodes:
            if module_of(self._program, node, HeadsPass) is None or not isinstance(
                node.args[3], Node
            ):
                continue
            end = self.views.source(node.args[3]).base
            if end in self.pairs or constant_of(self._program, end) is not None:
                continue
            found = pair_function(self._program, end, self.views.kinds)
            if found is not None:
                self.pairs[end] = found

    def _level(self, node: Node) -> int:
        """Level of a node that is no pass: a view has its pass's, others wait for it."""
        base = self.views.source(node).base
        if base in self.owners:
            return self._levels[self.owners[base]]
        return max(
            (
                self._levels[one] + (self.views.source(one).base in self.owners)
                for one in node.all_input_nodes
            ),
            default=0,
        )

    def _lengths_of(self, node: Node, owners: Sequence[Node]) -> tuple[int, ...] | None:
        """The sizes of L; those of its passes for a single row."""
        found = [self._lengths.get(one) for one in owners]
        layouts = map(self.views.layout, (node, *owners))
        found += [layout.lengths for layout in layouts if layout is not None]
        return next((lengths for lengths in found if lengths is not None), None)

    def _read(self, node: Node) -> list[Source] | None:
        """Inputs of a pass that can be joined; None for other nodes."""
        wanted = self._wanted(node)
        if wanted is None:
            return None
        read, lengths = [], set()
        for one, rows in wanted:
            layout = self.views.layout(one)
            if not isinstance(one, Node) or layout is None or layout.rows not in rows:
                return None
            read.append(self.views.source(one))
            lengths.add(layout.lengths)
        return read if len(lengths - {None}) <= 1 else None

    def _wanted(self, node: Node) -> list[tuple[object, tuple[Rows, ...]]] | None:
        """A pass's inputs and their allowed rows; None: it is no pass."""
        if node in self.pairs:
            found = self.pairs[node]
            fixed = [] if found.fixed is None else [(found.fixed, (Rows.PAIRS,))]
            return [(found.numbers, (Rows.ALONG, Rows.ALL)), *fixed]
        one_row = self.has_one_row(node)
        own = (Rows.ONE if one_row else Rows.ALL,)
        if module_of(self._program, node, RowPass) is not None:
            return [(one, own) for one in node.args]
        if module_of(self._program, node, HeadsPass) is None:
            return None
        query, key, value, bias, mask, *first = node.args
        if mask is not None or any(one is not None for one in first):
            return None
        of_bias = (Rows.ALONG if one_row else Rows.PAIRS,)
        added = [] if bias is None else [(bias, of_bias)]
        return [(query, own), (key, (Rows.ALL,)), (value, (Rows.ALL,)), *added]
