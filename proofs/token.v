(* SPDX-License-Identifier: Apache-2.0
   Token verification (include/specagg/verify/token.hpp) emits exactly pi, for any law pi and any draft rows q.
   Leviathan et al. 2023 (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318) for pi = p.

     keep_or_replace_emits_pi      one position: sum_y q(y) [accept or residual] = pi
     acceptance_is_1_minus_tv      a drafted token is kept with probability 1 - TV(q, pi)
     verify_token_emits_pi         whole texts, with drafts of any length, tokens outside the support, with or without
                                 a bonus
     verify_token_is_expectation   for each draft, what it emits is a random text: no probability is negative
     verify_match_emits_pi         exact-match verification, whatever was drafted *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Token.
Variables (T : finType) (R : realFieldType).
Implicit Types (y z v : T) (q : T -> R) (s : seq T) (V : seq T -> R).

(* ---- one position ---------------------------------------------------------------------------------------------- *)

(* A drafted token y: `kept` if it is accepted, else `replaced` of a token from norm((pi - q)+). *)
Definition keep_or_replace (pi q : T -> R) y (kept : R) (replaced : T -> R) : R :=
  coin (share (pi y) (q y)) kept (draw (norm_or pi (residual 1 pi q)) replaced).

(* The mean over y ~ q: what is kept has the weights min(q, pi), what is replaced the weights (pi - q)+. *)
Lemma draw_keep_or_replace (pi q : T -> R) (kept replaced : T -> R) :
  law pi -> law q ->
  draw q (fun y => keep_or_replace pi q y (kept y) replaced) =
  draw (fun v => Num.min (q v) (pi v)) kept + draw (residual 1 pi q) replaced.
Proof.
move=> pi_law q_law; rewrite /keep_or_replace /coin draw_add; congr (_ + _).
- apply: eq_bigr => v _.
  by rewrite mulrA mul_share ?(law_ge0 _ pi_law) ?(law_ge0 _ q_law) // minC.
- rewrite -[RHS](mass_draw_norm pi); last exact: residual_ge0.
  set d := draw _ replaced.
  rewrite (_ : mass (residual 1 pi q) = \sum_v q v * (1 - share (pi v) (q v))).
    by rewrite mulr_suml; apply: eq_bigr => v _; rewrite mulrA.
  rewrite -tv_residual ?(law_mass q_law) ?(law_mass pi_law) // tv_overlap ?(law_mass q_law) ?(law_mass pi_law) //.
  rewrite -{1}(law_mass q_law) /mass /overlap -sumrB; apply: eq_bigr => v _.
  by rewrite mulrBr mulr1 mul_share ?(law_ge0 _ pi_law) ?(law_ge0 _ q_law) // minC.
Qed.

Theorem keep_or_replace_emits_pi (pi q : T -> R) (f : T -> R) :
  law pi -> law q -> draw q (fun y => keep_or_replace pi q y (f y) f) = draw pi f.
Proof.
move=> pi_law q_law; rewrite draw_keep_or_replace // -draw_row_add; apply: draw_row_ext => v.
by rewrite minC /residual mul1r positive_split.
Qed.

(* The same with the probability of one token: token v comes out with probability pi(v). *)
Corollary keep_or_replace_probability (pi q : T -> R) v :
  law pi -> law q ->
  \sum_y q y * keep_or_replace pi q y ((y == v)%:R) (fun z => (z == v)%:R) = pi v.
Proof.
move=> pi_law q_law; rewrite [LHS](keep_or_replace_emits_pi (fun y => (y == v)%:R)) //.
rewrite /draw (bigD1 v) //= eqxx mulr1 big1 ?addr0 // => z /negbTE ->.
by rewrite mulr0.
Qed.

(* The probability that a token drawn from q is kept. *)
Definition acceptance (pi q : T -> R) : R := draw q (fun y => keep_or_replace pi q y 1 (fun=> 0)).

Theorem acceptance_is_overlap (pi q : T -> R) : law pi -> law q -> acceptance pi q = overlap q pi.
Proof.
move=> pi_law q_law; rewrite /acceptance (draw_keep_or_replace (fun=> 1)) //.
by rewrite !draw_const mulr0 mulr1 addr0.
Qed.

Theorem acceptance_is_1_minus_tv (pi q : T -> R) : law pi -> law q -> acceptance pi q = 1 - tv q pi.
Proof.
move=> pi_law q_law; rewrite acceptance_is_overlap // tv_overlap ?(law_mass q_law) ?(law_mass pi_law) //.
by rewrite opprB addrC subrK.
Qed.

(* ---- whole drafts ---------------------------------------------------------------------------------------------- *)

(* A drafted token with the row that is said to be its law; None is an id outside the vocabulary, or padding (-1). *)
Definition drafted_token : Type := (T -> R) * option T.

Section Verify.
(* pi: the law of the next token given the text, any function of it (and so of rows, which are functions of it).
   bonus: whether a token is drawn after a draft that was accepted as a whole: not after the end of a text. *)
Variables (pi : seq T -> T -> R) (bonus : seq T -> bool).

Definition draw_bonus s V : R := if bonus s then draw (pi s) (fun z => V (rcons s z)) else V s.

(* A token outside the support (outside the vocabulary, or q(y) = 0) ends the draft before it. *)
Fixpoint verify_token s (drafted : seq drafted_token) V : R :=
  if drafted is (q, Some y) :: rest then
    if 0 < q y then keep_or_replace (pi s) q y (verify_token (rcons s y) rest V) (fun z => V (rcons s z))
    else draw_bonus s V
  else draw_bonus s V.

(* Draws from pi, and goes on while the drawn token is the drafted one. *)
Fixpoint verify_match s (drafted : seq (option T)) V : R :=
  if drafted is Some y :: rest then
    draw (pi s) (fun z => if z == y then verify_match (rcons s z) rest V else V (rcons s z))
  else draw_bonus s V.
End Verify.

(* How a draft comes about. `Propose q next`: the next token y is drawn from q, and `next y` says how the draft goes on.
   `Outside q y more`: a token stands in the draft that was not drawn from the row beside it, then anything. So the
   rows, the length, and where tokens outside the support stand may depend on the text and on the tokens drafted so far:
   not on the token that stands next to the row it is drawn from. *)
Inductive drafter : Type :=
  | Stop
  | Outside (q : T -> R) (y : option T) (more : seq drafted_token)
  | Propose (q : T -> R) (next : T -> drafter).

Fixpoint propose (d : drafter) (F : seq drafted_token -> R) : R :=
  match d with
  | Stop => F [::]
  | Outside q y more => F ((q, y) :: more)
  | Propose q next => draw q (fun y => propose (next y) (fun rest => F ((q, Some y) :: rest)))
  end.

(* Every row is a law, and a token outside the support has no probability in the row beside it. *)
Fixpoint honest (d : drafter) : Prop :=
  match d with
  | Stop => True
  | Outside q y _ => if y is Some v then q v = 0 else True
  | Propose q next => law q /\ forall y, honest (next y)
  end.

Section Emits.
Variables (pi : seq T -> T -> R) (bonus : seq T -> bool).
Hypothesis pi_law : forall s, law (pi s).

Lemma draw_bonus_promised V s : promised pi V -> draw_bonus pi bonus s V = V s.
Proof. by move=> pV; rewrite /draw_bonus; case: ifP => // _; rewrite -pV. Qed.

Lemma propose_ext (d : drafter) (F G : seq drafted_token -> R) : (forall l, F l = G l) -> propose d F = propose d G.
Proof.
elim: d F G => [|q y more|q next ih] F G FG //=.
by apply: draw_ext => y; apply: ih => l; apply: FG.
Qed.

(* keep_or_replace is affine in what follows an accepted token, so the mean over the rest of the draft goes inside. *)
Lemma propose_keep_or_replace (d : drafter) (r q : T -> R) y (G : seq drafted_token -> R) (h : T -> R) :
  honest d -> propose d (fun l => keep_or_replace r q y (G l) h) = keep_or_replace r q y (propose d G) h.
Proof.
elim: d G => [|? ? ?|q' next ih] G //= [q'_law hn].
transitivity (draw q' (fun z => keep_or_replace r q y (propose (next z) (fun l => G ((q', Some z) :: l))) h)).
  by apply: draw_ext => z; exact: (ih z (fun l => G ((q', Some z) :: l)) (hn z)).
by rewrite /keep_or_replace /coin draw_add draw_scale draw_law_const.
Qed.

Lemma verify_token_promised V (d : drafter) s :
  promised pi V -> honest d -> propose d (fun drafted => verify_token pi bonus s drafted V) = V s.
Proof.
move=> pV; elim: d s => [|q [y|] more|q next ih] s /=.
- by move=> _; apply: draw_bonus_promised.
- by move=> ->; rewrite ltxx; apply: draw_bonus_promised.
- by move=> _; apply: draw_bonus_promised.
- move=> [q_law hn]; rewrite [RHS]pV -(keep_or_replace_emits_pi (fun z => V (rcons s z)) (pi_law s) q_law).
  apply: eq_bigr => y _; case: (ltrP 0 (q y)) => hy.
  + by rewrite propose_keep_or_replace // ih.
  + have -> : q y = 0 by apply/le_anti; rewrite hy (law_ge0 _ q_law).
    by rewrite !mul0r.
Qed.

Theorem verify_token_is_expectation s (drafted : seq drafted_token) :
  expectation (verify_token pi bonus s drafted).
Proof.
have b u : expectation (draw_bonus pi bonus u).
  rewrite /draw_bonus; split=> [V V0||c d V V']; case: (bonus u) => //.
  - by apply: draw_ge0 => v; rewrite ?law_ge0.
  - exact: draw_law_const.
  - exact: draw_linear.
elim: drafted s => [|[q [y|]] rest ih] s /=; try exact: b.
case: (0 < q y); last exact: b.
have [ge0 one linear] := ih (rcons s y); have n_law := norm_or_law (pi_law s) (@residual_ge0 _ _ 1 (pi s) q).
have p0 := law_ge0 y (pi_law s).
split=> [V V0||c d V V']; rewrite /keep_or_replace.
- by apply: coin_ge0; rewrite ?share_ge0 ?share_le1 ?ge0 //; apply: draw_ge0 => v; rewrite ?law_ge0.
- by rewrite one draw_law_const // coin_const.
- by rewrite linear draw_linear coin_linear.
Qed.

Theorem verify_token_emits_pi (draft : seq T -> drafter) :
  (forall s, honest (draft s)) ->
  emits pi (fun s V => propose (draft s) (fun drafted => verify_token pi bonus s drafted V)).
Proof.
by move=> hd; apply: emits_of_promised => // V s pV; apply: verify_token_promised.
Qed.

Theorem verify_match_emits_pi (draft : seq T -> seq (option T)) :
  emits pi (fun s V => verify_match pi bonus s (draft s) V).
Proof.
apply: emits_of_promised => // V s pV; move: (draft s) => drafted.
elim: drafted s => [|[y|] rest ih] s /=; try exact: draw_bonus_promised.
by rewrite [RHS]pV; apply: draw_ext => z; case: ifP => // _; apply: ih.
Qed.
End Emits.

(* Exact match accepts with probability sum q pi. *)
Theorem match_acceptance (pi q : T -> R) : draw q (fun y => draw pi (fun z => (z == y)%:R)) = \sum_y q y * pi y.
Proof.
apply: eq_bigr => y _; congr (_ * _).
rewrite /draw (bigD1 y) //= eqxx mulr1 big1 ?addr0 // => z /negbTE ->.
by rewrite mulr0.
Qed.

End Token.
