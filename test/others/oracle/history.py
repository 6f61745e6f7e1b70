"""Histories: what happens to an engine, as data.

A history is drawn from a seed alone, before anything runs, so that it can be
played to any service, twice, and in parts: leaving steps out gives another
history that is as valid.
"""

import random
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Image:
    """A multimodal object in a prompt: its placeholder tokens and its content."""

    offset: int
    length: int
    content: int  # 64 bits


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    lora: str | None = None
    salt: str | None = None
    images: tuple[Image, ...] = ()
    lora_path: int = 0  # where the adapter of that name lay; routers are never told

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> "Prompt":
        """The first tokens of the prompt, with the images that begin in them."""
        images = tuple(image for image in self.images if image.offset < length)
        return replace(self, tokens=self.tokens[:length], images=images)

    def extended(self, tokens: tuple[int, ...]) -> "Prompt":
        return replace(self, tokens=self.tokens + tokens)


@dataclass(frozen=True)
class Submit:
    """A request arrives at a rank; output is what the model will answer."""

    prompt: Prompt
    output: tuple[int, ...]
    rank: int = 0
    skip_cache: bool = False  # it must not read the prefix cache
    full_report: bool = False  # kv_cache_report_mode=full


@dataclass(frozen=True)
class Step:
    """The rank's scheduler runs some steps."""

    count: int
    rank: int = 0


@dataclass(frozen=True)
class Drain:
    """The rank runs until it has no request left."""

    rank: int = 0


@dataclass(frozen=True)
class Reset:
    """The rank is asked to empty its prefix cache."""

    rank: int = 0


@dataclass(frozen=True)
class RestartEngine:
    """The rank's process ends, and one with an empty cache takes its ports."""

    rank: int = 0


@dataclass(frozen=True)
class Lose:
    """The network loses the rank's next messages; only a replay can bring them."""

    count: int
    rank: int = 0


@dataclass(frozen=True)
class Register:
    """The service learns of the worker: what was published before is replayed."""


@dataclass(frozen=True)
class RestartService:
    """The service ends, and one that knows nothing gets the registration again."""


@dataclass(frozen=True)
class Compare:
    """The engine and the service are asked how much of each prompt is cached."""

    prompts: tuple[Prompt, ...]


Operation = Submit | Step | Drain | Reset | RestartEngine | Lose | Register | RestartService | Compare
History = tuple[Operation, ...]


@dataclass(frozen=True)
class Load:
    """What the requests of a scenario are like. Lengths are in tokens."""

    rounds: int = 40  # requests arrive, steps run, prompts are compared
    compares: int = 8  # prompts a round
    arrivals: tuple[int, int] = (1, 3)  # requests a round, and ...
    steps: tuple[int, int] = (1, 12)  # ... scheduler steps; (0, 0): until all are done
    length: tuple[int, int] = (20, 160)  # of a new text or of what a turn adds
    longest: int = 420
    output: tuple[int, int] = (1, 40)
    ranks: int = 1
    align: int = 16  # the tokens of a block, in which exact repeats matter
    repeats: float = 0.25  # share of requests that repeat one exactly, ...
    turns: float = 0.35  # ... that continue a conversation, ...
    forks: float = 0.2  # ... that share a part of an earlier one; others are new
    aligned: float = 0.3  # share of prompts whose length is a multiple of align
    skips: float = 0.0
    full_reports: float = 0.0
    resets: float = 0.0  # chances a round
    engine_restarts: float = 0.0
    service_restarts: float = 0.0
    losses: float = 0.0
    lost: tuple[int, int] = (1, 12)  # messages a loss
    late: bool = False  # the service learns of the worker half way
    loras: tuple[str | None, ...] = (None,)
    lora_paths: int = 1  # places that an adapter is moved between
    salts: tuple[str | None, ...] = (None,)
    images: float = 0.0  # share of new texts with images in them


@dataclass
class _Writer:
    """Draws a history."""

    load: Load
    rng: random.Random
    texts: list[Prompt] = field(default_factory=list)  # each with its answer

    def history(self) -> History:
        load, rng = self.load, self.rng
        operations: list[Operation] = [] if load.late else [Register()]
        for round_ in range(load.rounds):
            if load.late and round_ == load.rounds // 2:
                operations.append(Register())
            for _ in range(rng.randint(*load.arrivals)):
                operations.append(self._submit())
            for rank in range(load.ranks):
                if load.losses and rng.random() < load.losses:
                    operations.append(Lose(rng.randint(*load.lost), rank))
                count = rng.randint(*load.steps)
                operations.append(Step(count, rank) if count else Drain(rank))
                for chance, event in (
                    (load.resets, Reset),
                    (load.engine_restarts, RestartEngine),
                ):
                    if rng.random() < chance:
                        operations += [Drain(rank), event(rank)]
            if rng.random() < load.service_restarts:
                operations.append(RestartService())
            operations.append(Compare(tuple(self._asked() for _ in range(load.compares))))
        return tuple(operations)

    def _submit(self) -> Submit:
        load, rng = self.load, self.rng
        prompt = self._prompt()
        output = self._tokens(rng.randint(*load.output))
        self.texts.append(prompt.extended(output))
        return Submit(
            prompt,
            output,
            rank=rng.randrange(load.ranks),
            skip_cache=rng.random() < load.skips,
            full_report=rng.random() < load.full_reports,
        )

    def _prompt(self) -> Prompt:
        load, rng = self.load, self.rng
        kind = rng.random()
        if not self.texts or kind > load.repeats + load.turns + load.forks:
            prompt = self._new()
        else:
            earlier = rng.choice(self.texts[-12:])
            if kind < load.repeats:
                return earlier.cut(self._whole(len(earlier)))
            cut = len(earlier) if kind < load.repeats + load.turns else rng.randint(1, len(earlier))
            prompt = earlier.cut(cut).extended(self._tokens(rng.randint(*load.length)))
        if len(prompt) > load.longest:
            prompt = prompt.cut(load.longest - rng.randrange(load.align))
        return prompt.cut(self._whole(len(prompt)))

    def _whole(self, length: int) -> int:
        """The length, or now and then the multiple of a block below it."""
        if self.rng.random() < self.load.aligned:
            return max(length - length % self.load.align, min(length, self.load.align))
        return length

    def _new(self) -> Prompt:
        load, rng = self.load, self.rng
        tokens = self._tokens(rng.randint(*load.length))
        images: list[Image] = []
        if rng.random() < load.images:
            offset = rng.randrange(load.align)
            while offset < len(tokens) - 4:
                length = rng.randint(2, min(3 * load.align, len(tokens) - offset))
                # Few contents, so that equal tokens are under different images.
                images.append(Image(offset, length, rng.choice((0x1111, 0x2222, 0x3333)) << 32))
                offset += length + rng.randint(1, 2 * load.align)
            tokens = tuple(self._under(images, i, token) for i, token in enumerate(tokens))
        prompt = Prompt(tokens, rng.choice(load.loras), rng.choice(load.salts), tuple(images))
        return replace(prompt, lora_path=rng.randrange(load.lora_paths)) if prompt.lora else prompt

    @staticmethod
    def _under(images: list[Image], index: int, token: int) -> int:
        """A placeholder where the token is under an image."""
        inside = any(image.offset <= index < image.offset + image.length for image in images)
        return 7 if inside else token

    def _asked(self) -> Prompt:
        """A prompt that is likely to be cached in part.

        Its last block is not full: at a full one the engine's answer depends on
        the request for one token more (max_cache_hit_length), not on its cache.
        """
        load, rng = self.load, self.rng
        if not self.texts:
            return self._new().extended((1,))
        text = rng.choice(self.texts[-24:])
        cut = len(text) if rng.random() < 0.6 else rng.randint(1, len(text))
        asked = text.cut(cut).extended(self._tokens(rng.randint(1, load.align)))
        if rng.random() < 0.1 and len(load.loras) > 1:
            asked = replace(asked, lora=rng.choice(load.loras))
        if load.lora_paths > 1 and asked.lora:
            asked = replace(asked, lora_path=rng.randrange(load.lora_paths))
        if rng.random() < 0.1 and len(load.salts) > 1:
            asked = replace(asked, salt=rng.choice(load.salts))
        return asked if len(asked) % load.align else asked.extended((1,))

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(100, 30_000) for _ in range(count))


def draw(load: Load, seed: str) -> History:
    """The history of a load under a seed; the same for the same arguments."""
    return _Writer(load, random.Random(seed)).history()
