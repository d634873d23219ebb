(* SPDX-License-Identifier: Apache-2.0
   Drafts that are cut. To stop, or to cut a draft, without looking at the token drawn there does not change the law. A
   cut that looks at it leaves a draw from a part of q: that part, not renormalised, is the row to verify with, and
   (pi - q 1_A)+ is owed on rejection and where nothing was kept (include/specagg/rows/cut_row.hpp).

     propose_cut                       a draft cut by the text before each token is the draft of another drafter
     verify_token_of_cut_emits_pi      so it emits pi: token verification,
     verify_block_of_cut_emits_pi      and block verification. Trees: a drafting in tree.v may end, or widen, by all
                                       that was drawn
     kept_part_law, draw_kept_part     `None` for "nothing was kept": q 1_A and, at None, the mass outside A
     keep_or_replace_kept_emits_pi     one position: what is left is (pi - q 1_A)+, with or without a kept token
     verify_token_of_kept_emits_pi, verify_block_of_kept_emits_pi, verify_tree_of_kept_emits_pi,
     verify_tree_recursive_of_kept_emits_pi     whole texts: each verifier emits pi with such rows

   Not pi:
     dropped_if_short_is_not_pi        a draft is dropped if its next row is not sure enough (n_min with p_min)
     redraw_of_refused_is_not_pi       a token that a grammar refuses is replaced by a draw from p
     stop_at_unlikely_is_not_pi        drafting stops at an unlikely token, without it, and the next is drawn from p
     smaller_vocabulary_is_not_pi      the residual is drawn from the draft's vocabulary only *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token tree block counterexamples.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* ---- cuts that do not look -------------------------------------------------------------------------------------- *)

Section Blind.
Variables (T : finType) (R : realFieldType).
Implicit Types (y : T) (s : seq T) (d : drafter T R) (drafted : seq (drafted_token T R)).

(* stops s: whether the draft ends before the token after s, s being the text with the tokens drafted so far. Rows are
   functions of s, so it may read the row of the token that it drops, and not the token. *)
Variable stops : seq T -> bool.

(* What is left of a draft that was drawn already. *)
Fixpoint cut s drafted : seq (drafted_token T R) :=
  if drafted is (q, y) :: rest then
    if stops s then [::] else (q, y) :: (if y is Some v then cut (rcons s v) rest else rest)
  else [::].

(* The drafter that stops there. *)
Fixpoint cut_drafter s d : drafter T R :=
  match d with
  | Stop => Stop T R
  | Outside q y more =>
    if stops s then Stop T R else Outside q y (if y is Some v then cut (rcons s v) more else more)
  | Propose q next => if stops s then Stop T R else Propose q (fun y => cut_drafter (rcons s y) (next y))
  end.

Lemma propose_const d (c : R) : honest d -> propose d (fun=> c) = c.
Proof.
elim: d => [|q y more|q next ih] //= [q_law hn].
by rewrite -[RHS](draw_law_const c q_law); apply: draw_ext => y; apply: ih.
Qed.

Theorem propose_cut s d (F : seq (drafted_token T R) -> R) :
  honest d -> propose d (fun drafted => F (cut s drafted)) = propose (cut_drafter s d) F.
Proof.
elim: d s F => [|q y more|q next ih] s F //=; first by case: (stops s).
move=> [q_law hn]; case: (stops s) => /=.
- by rewrite -[RHS](draw_law_const _ q_law); apply: draw_ext => y; apply: propose_const.
- by apply: draw_ext => y; exact: (ih y (rcons s y) (fun rest => F ((q, Some y) :: rest)) (hn y)).
Qed.

Lemma honest_cut s d : honest d -> honest (cut_drafter s d).
Proof.
elim: d s => [|q y more|q next ih] s //=; first by case: (stops s).
by move=> [q_law hn]; case: (stops s) => //=; split=> // y; apply: ih.
Qed.

Variables (pi : seq T -> T -> R) (bonus : seq T -> bool).
Hypothesis pi_law : forall s, law (pi s).

Theorem verify_token_of_cut_emits_pi (draft : seq T -> drafter T R) :
  (forall s, honest (draft s)) ->
  emits pi (fun s V => propose (draft s) (fun drafted => verify_token pi bonus s (cut s drafted) V)).
Proof.
move=> hd N f s; have h u : honest (cut_drafter u (draft u)) by apply: honest_cut.
rewrite -[RHS](verify_token_emits_pi bonus pi_law (draft := fun u => cut_drafter u (draft u)) h N f s).
exact: (propose_cut s (fun drafted => verify_token pi bonus s drafted _) (hd s)).
Qed.

Theorem verify_block_of_cut_emits_pi (draft : seq T -> drafter T R) :
  (forall s, honest (draft s)) ->
  emits pi (fun s V => propose (draft s) (fun drafted => verify_block pi bonus s (cut s drafted) V)).
Proof.
move=> hd N f s; have h u : honest (cut_drafter u (draft u)) by apply: honest_cut.
rewrite -[RHS](verify_block_emits_pi bonus pi_law (draft := fun u => cut_drafter u (draft u)) h N f s).
exact: (propose_cut s (fun drafted => verify_block pi bonus s drafted _) (hd s)).
Qed.
End Blind.

(* ---- cuts that look --------------------------------------------------------------------------------------------- *)

(* A drafted token outside A is not kept. `None` stands in its place: a token that no text has. So a kept part is the
   row of a vocabulary with one more token, to which pi gives no probability. *)
Section Kept.
Variables (T : finType) (R : realFieldType).
Implicit Types (A : pred T) (y v : T) (q p : T -> R) (s : seq T) (V : seq T -> R).

Definition keep A y : option T := if A y then Some y else None.

(* q 1_A, and at None what is missing to 1. *)
Definition kept_part A q : option T -> R :=
  fun o => if o is Some v then (if A v then q v else 0) else \sum_(v | ~~ A v) q v.

(* p, without a probability for None. *)
Definition never_none p : option T -> R := fun o => if o is Some v then p v else 0.

Lemma sum_option (F : option T -> R) : \sum_o F o = F None + \sum_v F (Some v).
Proof.
rewrite (bigD1 None) //=; congr (_ + _).
rewrite (reindex_omap Some id) //=; last by case.
by apply: eq_bigl => v; rewrite eqxx.
Qed.

Lemma never_none_law p : law p -> law (never_none p).
Proof.
move=> [p0 p1]; split=> [[v|]|] //=.
by rewrite /mass sum_option add0r.
Qed.

Theorem kept_part_law A q : law q -> law (kept_part A q).
Proof.
move=> [q0 q1]; split=> [[v|]|] /=.
- by case: ifP.
- exact: sumr_ge0.
- by rewrite /mass sum_option /= -big_mkcond /= addrC -[RHS]q1 /mass [RHS](bigID A).
Qed.

(* It is the law of what is kept of a token drawn from q. *)
Theorem draw_kept_part A q (f : option T -> R) : draw q (fun y => f (keep A y)) = draw (kept_part A q) f.
Proof.
rewrite /draw sum_option /= (bigID A) /= addrC; congr (_ + _).
- by rewrite mulr_suml; apply: eq_bigr => v /negbTE h; rewrite /keep h.
- rewrite [RHS](bigID A) /= [X in _ = _ + X]big1 ?addr0.
  + by apply: eq_bigr => v h; rewrite /keep h.
  + by move=> v /negbTE ->; rewrite mul0r.
Qed.

(* What is left to draw from is (p - q 1_A)+, and None has none of it. *)
Lemma residual_kept_part A p q o :
  law q -> residual 1 (never_none p) (kept_part A q) o =
           if o is Some v then positive (p v - (if A v then q v else 0)) else 0.
Proof.
move=> hq; case: o => [v|]; rewrite /residual mul1r //= /positive sub0r.
by rewrite max_r // oppr_le0 sumr_ge0 // => v _; apply: law_ge0.
Qed.

(* One position. A kept token is accepted with min(1, p / q); else, and where none was kept, a token is drawn from
   norm((p - q 1_A)+). *)
Theorem keep_or_replace_kept_emits_pi A p q (f : option T -> R) :
  law p -> law q ->
  draw q (fun y => keep_or_replace (never_none p) (kept_part A q) (keep A y) (f (keep A y)) f)
  = draw p (fun v => f (Some v)).
Proof.
move=> hp hq.
rewrite (draw_kept_part A q (fun o => keep_or_replace (never_none p) (kept_part A q) o (f o) f)).
rewrite keep_or_replace_emits_pi; [|exact: never_none_law|exact: kept_part_law].
by rewrite /draw sum_option mul0r add0r.
Qed.

(* Where none was kept there is no coin. *)
Theorem nothing_kept_is_replaced A p q (kept : R) (f : option T -> R) :
  0 < kept_part A q None ->
  keep_or_replace (never_none p) (kept_part A q) None kept f
  = draw (norm_or (never_none p) (residual 1 (never_none p) (kept_part A q))) f.
Proof. by move=> h; rewrite /keep_or_replace /share /= h mul0r /coin mul0r add0r subr0 mul1r. Qed.

(* ---- whole texts: of marked tokens, none of which is ever None *)

Definition tokens (t : seq (option T)) : seq T := pmap id t.
Definition marked s : seq (option T) := map Some s.

Lemma tokens_marked s : tokens (marked s) = s.
Proof. by elim: s => //= y s ->. Qed.

Variable pi : seq T -> T -> R.
Definition marked_pi (t : seq (option T)) : option T -> R := never_none (pi (tokens t)).
Hypothesis pi_law : forall s, law (pi s).

Lemma marked_pi_law t : law (marked_pi t).
Proof. exact: never_none_law. Qed.

Theorem continued_marked N (f : seq (option T) -> R) s :
  continued marked_pi N f (marked s) = continued pi N (fun t => f (marked t)) s.
Proof.
rewrite /continued size_map; move: (N - size s)%N => n; elim: n s => [|n ih] s /=; first by rewrite /marked map_take.
rewrite /marked_pi /draw sum_option mul0r add0r tokens_marked; apply: eq_bigr => v _.
by rewrite -ih /marked map_rcons.
Qed.

(* A drafter, and for each position the tokens that it keeps. A and the rest depend on what was kept before. After None
   the rest is never accepted. *)
Inductive keeper := Ends | Keeps (A : pred T) (q : T -> R) (next : option T -> keeper).

Fixpoint propose_kept (d : keeper) (F : seq (drafted_token [finType of option T] R) -> R) : R :=
  match d with
  | Ends => F [::]
  | Keeps A q next =>
    draw q (fun y => propose_kept (next (keep A y)) (fun rest => F ((kept_part A q, Some (keep A y)) :: rest)))
  end.

Fixpoint keeps_of_laws (d : keeper) : Prop :=
  if d is Keeps A q next then law q /\ forall o, keeps_of_laws (next o) else True.

(* The same, as a drafter of the marked vocabulary. *)
Fixpoint marked_drafter (d : keeper) : drafter [finType of option T] R :=
  if d is Keeps A q next then Propose (kept_part A q) (fun o => marked_drafter (next o)) else Stop _ _.

Lemma propose_marked d F : propose_kept d F = propose (marked_drafter d) F.
Proof.
elim: d F => [|A q next ih] F //=.
rewrite -draw_kept_part; apply: draw_ext => y.
exact: (ih (keep A y) (fun rest => F ((kept_part A q, Some (keep A y)) :: rest))).
Qed.

Lemma marked_honest d : keeps_of_laws d -> honest (marked_drafter d).
Proof. by elim: d => [|A q next ih] //= [hq hn]; split=> [|o]; [exact: kept_part_law | exact: ih]. Qed.

Variable bonus : seq (option T) -> bool.

Theorem verify_token_of_kept_emits_pi (d : seq (option T) -> keeper) N f s :
  (forall t, keeps_of_laws (d t)) ->
  propose_kept (d (marked s)) (fun drafted =>
    verify_token marked_pi bonus (marked s) drafted (continued marked_pi N f))
  = continued pi N (fun t => f (marked t)) s.
Proof.
move=> hd; rewrite propose_marked -continued_marked.
apply: (verify_token_emits_pi bonus marked_pi_law (draft := fun t => marked_drafter (d t))) => t.
exact: marked_honest.
Qed.

Theorem verify_block_of_kept_emits_pi (d : seq (option T) -> keeper) N f s :
  (forall t, keeps_of_laws (d t)) ->
  propose_kept (d (marked s)) (fun drafted =>
    verify_block marked_pi bonus (marked s) drafted (continued marked_pi N f))
  = continued pi N (fun t => f (marked t)) s.
Proof.
move=> hd; rewrite propose_marked -continued_marked.
apply: (verify_block_emits_pi bonus marked_pi_law (draft := fun t => marked_drafter (d t))) => t.
exact: marked_honest.
Qed.

(* Trees whose children are drawn from kept parts: those are laws, so all of tree.v holds. *)
Theorem verify_tree_of_kept_emits_pi end_of_text (d : seq (option T) -> drafting [finType of option T] R) N f s :
  (forall t, draws_from_laws (d t)) ->
  drafted (d (marked s)) (Leaf [finType of option T] R) (fun t =>
    verify_tree marked_pi end_of_text bonus t (marked s) (continued marked_pi N f))
  = continued pi N (fun t => f (marked t)) s.
Proof.
by move=> hd; rewrite -continued_marked; apply: (verify_tree_emits_pi end_of_text bonus marked_pi_law hd).
Qed.

Theorem verify_tree_recursive_of_kept_emits_pi
  end_of_text (d : seq (option T) -> drafting [finType of option T] R) N f s :
  (forall t, draws_from_laws (d t)) ->
  drafted (d (marked s)) (Leaf [finType of option T] R) (fun t =>
    verify_tree_recursive marked_pi end_of_text bonus t (marked s) (continued marked_pi N f))
  = continued pi N (fun t => f (marked t)) s.
Proof.
by move=> hd; rewrite -continued_marked; apply: (verify_tree_recursive_emits_pi end_of_text bonus marked_pi_law hd).
Qed.
End Kept.

(* ---- cuts that change the law ----------------------------------------------------------------------------------- *)

(* A drafted token is verified with its row as usual if `kept` says so; else, as at the end of a draft, a token is drawn
   from p. *)
Definition kept_or_drawn (T : finType) (p q : T -> rat) (kept : pred T) y (f : T -> rat) : rat :=
  if kept y then keep_or_replace p q y (f y) f else draw p f.

(* Two fair coins as draft and target. After `true` the draft model is sure of its next token, after `false` it is not.
   A draft that ends there has one token: fewer than it must have, so it is dropped. *)
Section Short.
Let p := row2 (1 / 2%:Q) (1 / 2%:Q).
Let sure_of_next : pred bool := fun y => y.

Theorem dropped_if_short_is_not_pi :
  draw p (fun y => kept_or_drawn p p sure_of_next y (is_token true)) = 3%:Q / 4%:Q /\ p true = 1 / 2%:Q.
Proof.
by split=> //; rewrite /draw /kept_or_drawn /keep_or_replace /norm_or /mass /draw !big_bool; vm_compute.
Qed.
End Short.

(* Token 2 is refused: p, which was masked, has no probability for it. q was not masked. *)
Section Refused.
Let q := row3 (1 / 2%:Q) (1 / 4%:Q) (1 / 4%:Q).
Let p := row3 (1 / 2%:Q) (1 / 2%:Q) 0.
Let allowed : pred 'I_3 := fun v => v != token2.

Theorem redraw_of_refused_is_not_pi :
  draw q (fun y => kept_or_drawn p q allowed y (is_token token0)) = 5%:Q / 8%:Q /\ p token0 = 1 / 2%:Q.
Proof.
by split=> //; rewrite /draw /kept_or_drawn /keep_or_replace /norm_or /mass /draw !sum3; vm_compute.
Qed.
End Refused.

(* Drafting stops at a token whose probability is below 1/2, and leaves it out. *)
Section Unlikely.
Let q := row2 (3%:Q / 4%:Q) (1 / 4%:Q).
Let likely : pred bool := fun y => 1 / 2%:Q <= q y.

Theorem stop_at_unlikely_is_not_pi :
  draw q (fun y => kept_or_drawn q q likely y (is_token true)) = 15%:Q / 16%:Q /\ q true = 3%:Q / 4%:Q.
Proof.
by split=> //; rewrite /draw /kept_or_drawn /keep_or_replace /norm_or /mass /draw !big_bool; vm_compute.
Qed.
End Unlikely.

(* The draft's vocabulary is {0, 1}, the target's {0, 1, 2}. What replaces a rejected token is drawn from the first
   two. *)
Section Smaller.
Let q := row3 (3%:Q / 4%:Q) (1 / 4%:Q) 0.
Let p := row3 (1 / 4%:Q) (1 / 2%:Q) (1 / 4%:Q).
Let shared (w : 'I_3 -> rat) : 'I_3 -> rat := fun v => if v == token2 then 0 else w v.

Theorem smaller_vocabulary_is_not_pi :
  draw q (fun y => keep_or_replace_by (norm_or p (shared (residual 1 p q))) p q y (is_token token2 y) (is_token token2))
  = 0
  /\ p token2 = 1 / 4%:Q.
Proof. by split=> //; rewrite /draw /keep_or_replace_by /norm_or /mass /draw !sum3; vm_compute. Qed.
End Smaller.
