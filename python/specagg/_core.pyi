# SPDX-License-Identifier: Apache-2.0
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

class _Plan:
    """Closed forms; specagg.plan says what they are."""

    @staticmethod
    def expected_tokens(acceptance: float, gamma: int, bonus: bool) -> float: ...
    @staticmethod
    def speedup(acceptance: float, gamma: int, c: float, v: float, law_reads_draft: bool) -> float: ...
    @staticmethod
    def naive_cos_speedup(acceptance: float, gamma: int, c: float, v: float) -> float: ...
    @staticmethod
    def alternating_cos_speedup(a_q: float, a_p: float, gamma_q: int, gamma_p: int, c: float, v_q: float,
                                v_p: float) -> float: ...
    @staticmethod
    def best_gamma(acceptances: Sequence[float], c: float, v: Sequence[float], fixed: float) -> tuple[int, float]: ...
    @staticmethod
    def least_coupled_acceptance(distance: float) -> float: ...
    @staticmethod
    def ensemble_acceptances(lambda_: float, distance: float) -> tuple[float, float]: ...

plan: _Plan
status_count: int
origins: list[str]
verifiers: list[tuple[str, bool]]  # name, whether it is coupled
tree_verifiers: list[str]
filter_orders: list[str]
proposals: list[str]
phase: int  # lines of no catalogue
by_position: int

def isa() -> str:
    """The instruction set that was chosen at import; SPECAGG_ISA in the environment names another."""

def set_threads(threads: int) -> None:
    """How many threads verify() and draw() work on, the caller's included: 1 to 1024. All cores unless set."""

def policies() -> list[tuple[str, str, bool, bool, list[tuple[str, float, float, float, bool, bool, str | None]]]]: ...
def status_name(status: int) -> str: ...
def refuse_lazy(x: Any, name: str) -> None: ...

class Policy:
    """A policy with its parameters, made by specagg.policy(), by_position() or phase(). Two are equal if name and
    parameters are. It can be pickled."""

    def __init__(self, line: int, parameters: Sequence[float], parts: Sequence[Policy] = (), open: Sequence[int] = (),
                 close: Sequence[int] = ()) -> None: ...
    def valid(self) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def name(self) -> str:
        """As policies() has it."""
    @property
    def law(self) -> str:
        """Its equation in words."""
    @property
    def reads_draft(self) -> bool:
        """Whether its law needs the draft's row."""
    @property
    def of_text(self) -> bool:
        """Whether the law of a token depends on the text: verify() and law() alone take it."""
    @property
    def values(self) -> list[float]:
        """Of its parameters."""

class Sampling:
    def __init__(self, temperature: Any, top_k: Any, top_p: Any, min_p: Any, order: int) -> None: ...
    @property
    def temperature(self) -> Any: ...
    @property
    def top_k(self) -> Any: ...
    @property
    def top_p(self) -> Any: ...
    @property
    def min_p(self) -> Any: ...
    @property
    def order(self) -> int: ...

class Edits:
    def __init__(self, repetition: Any, presence: Any, frequency: Any, history: Any, mask: Any) -> None: ...

class Verified:
    """The result of verify() for B requests. The arrays are views of this object. It can be pickled."""

    def __len__(self) -> int: ...
    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[B, gamma + 1]: the emitted tokens, then -1."""
    @property
    def emitted(self) -> npt.NDArray[np.int32]:
        """[B]: how many there are."""
    @property
    def accepted(self) -> npt.NDArray[np.int32]:
        """[B]: how many of them were drafted."""
    @property
    def ended(self) -> npt.NDArray[np.int32]:
        """[B]: the end-of-text token that is the last one, or -1."""
    @property
    def statuses(self) -> npt.NDArray[np.uint8]:
        """[B]: Status.ok, or why no further token could be emitted."""
    @property
    def states(self) -> npt.NDArray[np.float64]:
        """[B]: of a policy with state, that after the emitted tokens; NaN of another policy."""
    @property
    def origins(self) -> npt.NDArray[np.int8]:
        """[B, gamma + 1]: where the token is from: Origin.accepted: the draft; residual: drawn in place of a rejected
        one; bonus: drawn from the law where the draft has ended; no_token."""
    @property
    def reasons(self) -> npt.NDArray[np.uint8]:
        """[B, gamma + 1]: Status.ok, or what ended the draft at this position."""
    @property
    def log_pi(self) -> npt.NDArray[np.float64]:
        """[B, gamma + 1]: log-probability under the policy's law; NaN where there is no token."""
    @property
    def log_p(self) -> npt.NDArray[np.float64]:
        """[B, gamma + 1]: the same under p."""
    @property
    def acceptance_of_row(self) -> npt.NDArray[np.float64]:
        """[B, gamma]: the probability that a token drawn from this row is accepted, sum min(q, pi); match: sum q pi;
        coupled: 1 or 0, whether the drafted token is accepted, as Gumbel-max coupling leaves no chance. NaN beyond the
        draft."""
    @property
    def acceptance_of_token(self) -> npt.NDArray[np.float64]:
        """[B, gamma]: that of the drafted token y: min(1, pi(y) / q(y)); match: pi(y); coupled: as of_row."""

class VerifiedTrees(Verified):
    """The result of verify_tree(). Acceptances are not computed (NaN)."""

    @property
    def paths(self) -> npt.NDArray[np.int32]:
        """[B, depth]: the accepted nodes, from the first to the last, then -1."""

def verify_tree(tokens: Any, parents: Any, q: Any, p: Any, policies: Any, verifier: int, proposed: int, seeds: Any,
                requests: Any, positions: Any, q_logits: bool, p_logits: bool, q_sampling: Sampling,
                p_sampling: Sampling, end_of_text: Sequence[int], bonus: Any) -> VerifiedTrees: ...
def verify(drafts: Any, q: Any, p: Any, policies: Any, verifier: int, seeds: Any, requests: Any, positions: Any,
           q_logits: bool, p_logits: bool, q_sampling: Sampling, p_sampling: Sampling, edits: Edits, lengths: Any,
           offsets: Any, end_of_text: Sequence[int], bonus: Any, acceptances: bool,
           skip: Any, states: Any, kept: Any, synthetic_length: float, synthetic_rates: Sequence[float]) -> Verified: ...
def draw(rows: Any, logits: bool, sampling: Sampling, edits: Edits, seeds: Any, requests: Any, positions: Any,
         step: int, coupled: bool) -> npt.NDArray[np.int32]: ...
def law(policy: Policy, q: npt.NDArray[np.float64], p: npt.NDArray[np.float64], logits: bool, temperature: Any,
        top_k: Any, top_p: Any, min_p: Any, order: int,
        pi: npt.NDArray[np.float64]) -> tuple[int, float, float, float, float]: ...
def law_of_text(policy: Policy, q: npt.NDArray[np.float64], p: npt.NDArray[np.float64], logits: bool, temperature: Any,
                top_k: Any, top_p: Any, min_p: Any, order: int, state: float, pi: npt.NDArray[np.float64]) -> int: ...
def audit(policy: Policy, verifier: int) -> tuple[float, int, int, bool]: ...
def goodness_of_fit(counts: npt.NDArray[np.float64], law: npt.NDArray[np.float64],
                    false_alarm: float) -> tuple[float, float, float, bool, float]: ...
