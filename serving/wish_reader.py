"""What clients want of models, taken up into the releases."""

import logging
from collections.abc import Callable
from dataclasses import replace

from serving.board import Board
from serving.preparation import reason_of
from serving.releases import ModelReleases, Releases, Wish
from sharded_infer.errors import NotFoundError, ShardedInferError

_log = logging.getLogger("sharded_infer")


class WishReader:
    """Reads the board's wishes, each once. The follower alone calls."""

    def __init__(
        self,
        board: Board,
        look: Callable[[ModelReleases], ModelReleases],
        adopt: Callable[[str], None],
    ) -> None:
        """Begins with all wishes unread; those that the releases have answered are passed over.

        Args:
            board: the server's.
            look: reads what is published of a model.
            adopt: makes room for a model in the metrics.
        """
        self._board = board
        self._look = look
        self._adopt = adopt
        self._seen = -1

    @property
    def has_news(self) -> bool:
        """Whether there may be wishes to take up; cheap."""
        return self._board.wishes_sequence != self._seen

    def take(self, releases: Releases) -> Releases:
        """Takes up what is new, in the order in which clients said it.

        Args:
            releases: as they are.

        Returns:
            With the wishes in them. A wish for a model that does not exist changes nothing, and is
            answered; what keeps one from being read is the model's trouble.
        """
        if not self.has_news:
            return releases
        seen = self._board.wishes_sequence
        wishes = sorted(self._board.wishes().items(), key=lambda item: item[1].serial)
        for model, wish in wishes:
            if wish.serial <= releases.answered:
                continue
            known = releases.models.get(model)
            try:
                found = self._taken(known, model, wish)
            except NotFoundError:
                found = known
            except Exception as error:
                # A bug of ours, too, must not leave its client without an answer.
                if not isinstance(error, ShardedInferError | OSError):
                    _log.exception("internal error in taking up a wish for model %r", model)
                before = known or ModelReleases(model, wanted=False)
                found = replace(before, wish=wish.serial, trouble=reason_of(error))
            models = releases.models if found is None else {**releases.models, model: found}
            releases = replace(releases, models=models, answered=wish.serial)
        self._seen = seen
        return releases

    def _taken(self, known: ModelReleases | None, model: str, wish: Wish) -> ModelReleases | None:
        if not wish.wanted:
            return known and replace(known, wanted=False, wish=wish.serial, trouble="")
        release = known or ModelReleases(model, wanted=False)
        # Before it takes room that others may need.
        if not self._look(release).published:
            raise NotFoundError(f"no model {model!r}")
        self._adopt(model)
        return self._look(replace(release, wanted=True, wish=wish.serial, trouble="", failures=()))


def settled(releases: Releases, loading: set[str]) -> Releases:
    """Says of wishes that nothing more will come of them.

    Args:
        releases: as they are.
        loading: models of which versions are still to be loaded.
    """
    models = {
        model: replace(release, done=release.wish)
        if model not in loading and all(holding.ready for holding in release.held)
        else release
        for model, release in releases.models.items()
    }
    return replace(releases, models=models)
