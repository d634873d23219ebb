(* SPDX-License-Identifier: Apache-2.0
   Decoders: rounds of drafting and verifying until a text is long enough have the joint law of ancestral sampling from
   pi (include/specagg/decode/speculative.hpp, tree.hpp).

     decode_has_law            any rounds that emit pi and append at least one token; the round may be chosen by a
                               memory of all that happened before: draft lengths, drafters, measured acceptances
     tree_decode_has_law       trees of drafts, drafted as the text and the memory say
     speculative_decode_has_law   chains, verified token by token
     block_decode_has_law      chains, verified as blocks

   A decoder cuts its text at N tokens. With fuel for N rounds it has always finished. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token tree block.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Decode.
Variables (T : finType) (R : realFieldType) (M : Type).
Implicit Types (y z v : T) (s : seq T) (V : seq T -> R) (m : M) (K : M -> seq T -> R).

(* A round: the expected value of K at the memory and the text that it leaves. *)
Definition round_with_memory := M -> seq T -> (M -> seq T -> R) -> R.

(* Rounds until the text has N tokens; k: the value of the final text. *)
Fixpoint decode (round : round_with_memory) (N fuel : nat) m s (k : seq T -> R) : R :=
  if (N <= size s)%N then k (take N s)
  else if fuel is n.+1 then round m s (fun m' s' => decode round N n m' s' k) else 0.

(* Every text that a round leaves is longer: two values that agree on longer texts are equal after it. *)
Definition appends (round : round_with_memory) : Prop :=
  forall m s K K', (forall m' s', (size s < size s')%N -> K m' s' = K' m' s') -> round m s K = round m s K'.

(* Whatever the memory: the round emits pi. *)
Definition emits_with_memory (pi : seq T -> T -> R) (round : round_with_memory) : Prop :=
  forall m, emits pi (fun s V => round m s (fun _ => V)).

Theorem decode_has_law (pi : seq T -> T -> R) (round : round_with_memory) N m s (f : seq T -> R) :
  appends round -> emits_with_memory pi round ->
  decode round N (N - size s) m s f = continued pi N f s.
Proof.
move=> ha he.
have h n m' s' : (N <= size s' + n)%N -> decode round N n m' s' f = continued pi N f s'.
  elim: n m' s' => [|n ih] m' s' hn /=; rewrite /continued.
    by rewrite addn0 in hn; rewrite hn (eqP (_ : N - size s' == 0)%N).
  case: ifP => [le|_]; first by rewrite (eqP (_ : N - size s' == 0)%N).
  rewrite -/(continued pi N f s') -(he m' N f s'); apply: ha => m2 s2 lt.
  by apply: ih; apply: (leq_trans hn); rewrite addnS -addSn leq_add2r.
by apply: h; rewrite -leq_subLR.
Qed.

(* From the empty text, text by text: the decoder writes t with the probability that pi gives it. *)
Corollary decode_probability (pi : seq T -> T -> R) (round : round_with_memory) m (t : seq T) :
  appends round -> emits_with_memory pi round ->
  decode round (size t) (size t) m [::] (fun u => (u == t)%:R) = probability pi [::] t.
Proof.
move=> ha he; rewrite -probability_of_text -(decode_has_law _ m [::] _ ha he).
by rewrite subn0.
Qed.

(* ---- rounds ------------------------------------------------------------------------------------------------------ *)

Variables (pi : seq T -> T -> R) (end_of_text : pred T) (bonus : seq T -> bool).
Hypothesis pi_law : forall s, law (pi s).
Hypothesis always_bonus : forall s, bonus s.

Lemma finish_longer s pi_left (settled : bool) n V V' :
  (n <= size s)%N -> (forall s', (n < size s')%N -> V s' = V' s') ->
  finish pi bonus s pi_left settled (emitted V) = finish pi bonus s pi_left settled (emitted V').
Proof.
move=> le e; rewrite /finish /emitted always_bonus.
by case: settled; apply: draw_ext => z; rewrite e // cats1 size_rcons ltnS.
Qed.

Lemma visit_longer t s a pi_left (settled : bool) n V V' fail :
  (n <= size s)%N -> (forall s', (n < size s')%N -> V s' = V' s') ->
  visit pi end_of_text bonus t s a pi_left settled (emitted V) fail =
  visit pi end_of_text bonus t s a pi_left settled (emitted V') fail.
Proof.
move=> le e; elim: t s a pi_left settled fail le => [|y L below ihb rest ihr] s a pi_left settled fail le /=.
  by rewrite (finish_longer _ _ le e).
rewrite (ihr _ _ _ _ _ le) (ihr _ _ _ settled _ le); case: ifP => // _.
have le' : (n <= size (rcons s y))%N by rewrite size_rcons leqW.
rewrite (ihb _ _ _ _ _ le') /emitted cats0 e // size_rcons ltnS //.
Qed.

Lemma drafted_ext (d : drafting T R) t (F G : tree T R -> R) : (forall u, F u = G u) -> drafted d t F = drafted d t G.
Proof. by move=> e; elim: d t => [|path L next ih] t /=; [exact: e | apply: draw_ext => y; exact: ih]. Qed.

(* A round of tree_decode: what is drafted depends on text and memory; the memory that is left on all that was drafted
   and written. *)
Definition tree_round (draft : M -> seq T -> drafting T R) (learn : M -> seq T -> tree T R -> seq T -> M) :
  round_with_memory := fun m s K =>
  drafted (draft m s) (Leaf T R) (fun t => verify_tree pi end_of_text bonus t s (fun s' => K (learn m s t s') s')).

Theorem tree_decode_has_law draft learn N m s f :
  (forall m s, draws_from_laws (draft m s)) ->
  decode (tree_round draft learn) N (N - size s) m s f = continued pi N f s.
Proof.
move=> hd; apply: decode_has_law.
- move=> m' s' K K' e; apply: drafted_ext => t; apply: (@visit_longer t s' _ _ _ (size s')) => // s2 lt.
  exact: e.
- by move=> m'; apply: (verify_tree_emits_pi end_of_text bonus pi_law (d := draft m')).
Qed.

(* ---- chains, token by token -------------------------------------------------------------------------------------- *)

Lemma verify_token_longer s drafted n V V' :
  (n <= size s)%N -> (forall s', (n < size s')%N -> V s' = V' s') ->
  verify_token pi bonus s drafted V = verify_token pi bonus s drafted V'.
Proof.
move=> le e; elim: drafted s le => [|[q [y|]] rest ih] s le /=; rewrite /draw_bonus always_bonus.
- by apply: draw_ext => z; rewrite e // size_rcons ltnS.
- case: ifP => _; last by apply: draw_ext => z; rewrite e // size_rcons ltnS.
  rewrite /keep_or_replace ih ?size_rcons ?leqW //; congr (coin _ _ _).
  by apply: draw_ext => z; rewrite e // size_rcons ltnS.
- by apply: draw_ext => z; rewrite e // size_rcons ltnS.
Qed.

(* A round of speculative_decode. *)
Definition speculative_round (draft : M -> seq T -> drafter T R)
  (learn : M -> seq T -> seq (drafted_token T R) -> seq T -> M) : round_with_memory := fun m s K =>
  propose (draft m s) (fun l => verify_token pi bonus s l (fun s' => K (learn m s l s') s')).

Theorem speculative_decode_has_law draft learn N m s f :
  (forall m s, honest (draft m s)) ->
  decode (speculative_round draft learn) N (N - size s) m s f = continued pi N f s.
Proof.
move=> hd; apply: decode_has_law.
- move=> m' s' K K' e; apply: propose_ext => l; apply: (@verify_token_longer s' l (size s')) => // s2 lt.
  exact: e.
- by move=> m'; apply: (verify_token_emits_pi bonus pi_law (draft := draft m')).
Qed.

End Decode.

(* ---- chains, as blocks ------------------------------------------------------------------------------------------- *)

Section Block.
Variables (T : finType) (R : realFieldType) (M : Type) (pi : seq T -> T -> R) (bonus : seq T -> bool).
Hypothesis pi_law : forall s, law (pi s).
Hypothesis always_bonus : forall s, bonus s.

Definition block_round (draft : M -> seq T -> drafter T R)
  (learn : M -> seq T -> seq (drafted_token T R) -> seq T -> M) : round_with_memory T R M := fun m s K =>
  propose (draft m s) (fun l => verify_block pi bonus s l (fun s' => K (learn m s l s') s')).

Theorem block_decode_has_law draft learn N m s f :
  (forall m s, honest (draft m s)) ->
  decode (block_round draft learn) N (N - size s) m s f = continued pi N f s.
Proof.
move=> hd; apply: decode_has_law.
- move=> m' s' K K' e; apply: propose_ext => l; rewrite /verify_block !block_is_verify_tree //.
  apply: (@visit_longer _ _ pi pred0 bonus always_bonus _ s' _ _ _ (size s')) => // s2 lt.
  exact: e.
- by move=> m'; apply: (verify_block_emits_pi bonus pi_law (draft := draft m')).
Qed.

End Block.
