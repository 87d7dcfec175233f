"""The claim of a recipe: of all jobs that need the same prepared data, one prepares it, and the others wait."""

import threading
from uuid import UUID

from trainer.client.platform import Platform
from trainer.contract.run import MAX_DATA_ERROR, EndClass, PreparationRelease, PreparationReply, PreparationRequest
from trainer.errors import TrainerError


class PreparationClaim:
    """The claim of one recipe. Once granted, a thread renews it until `release`, or until another attempt has it.

    `token` is None while the claim is not held. It must be sent with the registration of what was prepared.
    """

    def __init__(self, platform: Platform, dataset_id: str, recipe: str, *, helps: bool = False) -> None:
        """Set up for one recipe. `helps`: never claim it, but report where its holder in this attempt wants help."""
        self._platform, self._dataset_id, self._recipe, self._helps = platform, dataset_id, recipe, helps
        self._store: str | None = None
        self._released = threading.Event()
        self.token: UUID | None = None

    def ask(self) -> PreparationReply:
        """Ask for the claim, or renew it. Raises TrainerError."""
        held = self.token
        reply = self._request(held)
        self.token = reply.token
        if reply.token is not None and reply.token != held:
            self._released.clear()
            renewing = (reply.token, reply.renew_seconds)
            threading.Thread(target=self._renew, args=renewing, name="preparation", daemon=True).start()
        return reply

    def offer_work(self, store: str | None) -> None:
        """Report to the other nodes of the attempt that they can help, through the store at HOST:PORT, or no longer."""
        self._store = store
        self.ask()

    def release(self, error: Exception | None = None) -> None:
        """Stop renewing. Let another attempt prepare the data, or report to all that it has an error (DATA_ERROR)."""
        self._released.set()
        token, self.token = self.token, None
        if token is not None:
            is_in_data = isinstance(error, TrainerError) and error.end_class is EndClass.DATA_ERROR
            self._platform.release_preparation(
                PreparationRelease(
                    dataset_id=self._dataset_id,
                    recipe=self._recipe,
                    token=token,
                    data_error=str(error)[:MAX_DATA_ERROR] if is_in_data else "",
                )
            )

    def _request(self, token: UUID | None) -> PreparationReply:
        request = PreparationRequest(
            dataset_id=self._dataset_id, recipe=self._recipe, token=token, helps=self._helps, store=self._store
        )
        return self._platform.claim_preparation(request)

    def _renew(self, token: UUID, seconds: float) -> None:
        while not self._released.wait(seconds) and self.token == token:
            try:
                reply = self._request(token)
            except TrainerError:  # the platform is unreachable, or the attempt is over: the lease expires
                return
            if reply.token is None and self.token == token:
                self.token = None
