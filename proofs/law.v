(* SPDX-License-Identifier: Apache-2.0
   The words of all other files: rows, laws, draws, coins, residuals, and the text that a law promises.

   T is any finite set of tokens, R any ordered field (the rationals and the reals are two). A row gives every token a
   number. A random procedure is given by its expectation: it takes a function V of the text and has the expected value
   of V at the text that it emits. A draw is a finite sum, a coin a mixture of two values.

   `continued pi N f x` is the expected value of f at the first N tokens of a text that begins with x and is continued
   token by token from pi (ancestral sampling). `emits pi round` says that a procedure changes none of these numbers,
   for no N and no f: what it emits, continued from pi, has exactly the joint law of ancestral sampling. With f = 1 at
   one text and 0 at all others they are the texts' probabilities (`probability_of_text`). *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Law.
Variables (T : finType) (R : realFieldType).
Implicit Types (x y v : T) (a b p q w pi : T -> R) (s : seq T).

(* ---- rows ------------------------------------------------------------------------------------------------------ *)

Definition mass w : R := \sum_v w v.
Definition law p : Prop := (forall v, 0 <= p v) /\ mass p = 1.
Definition one_hot y : T -> R := fun v => (v == y)%:R.

Definition positive (z : R) : R := Num.max z 0.
Definition overlap a b : R := \sum_v Num.min (a v) (b v).
Definition tv a b : R := 2%:R^-1 * \sum_v `|a v - b v|.

(* What is left of claim * pi when q is taken away. *)
Definition residual (claim : R) pi q : T -> R := fun v => positive (claim * pi v - q v).
(* w / sum w; where w has no mass, the row `other` instead. *)
Definition norm_or other w : T -> R := fun v => if 0 < mass w then w v / mass w else other v.

(* ---- random steps ---------------------------------------------------------------------------------------------- *)

(* The expected value of f at a token drawn from the row w. *)
Definition draw w (f : T -> R) : R := \sum_v w v * f v.
(* The expected value of a procedure that does `yes` with probability h, else `no`. *)
Definition coin (h yes no : R) : R := h * yes + (1 - h) * no.
(* min(1, w / t): the probability of U * t < w for t > 0. *)
Definition share (w t : R) : R := if w < t then w / t else 1.

Lemma positive_ge0 z : 0 <= positive z.
Proof. by rewrite /positive le_maxr lexx orbT. Qed.

Lemma positive_split (c d : R) : Num.min c d + positive (c - d) = c.
Proof.
rewrite /positive; case: (lerP c d) => h.
- by rewrite max_r ?addr0 // subr_le0.
- by rewrite max_l ?subr_ge0 ?ltW // addrC subrK.
Qed.

Lemma mass_ge0 w : (forall v, 0 <= w v) -> 0 <= mass w.
Proof. by move=> w0; apply: sumr_ge0. Qed.

Lemma mass0_row w : (forall v, 0 <= w v) -> mass w = 0 -> forall v, w v = 0.
Proof.
move=> w0 /eqP; rewrite psumr_eq0; last by move=> v _; apply: w0.
by move=> /allP h v; apply/eqP; apply: h; rewrite mem_index_enum.
Qed.

Lemma residual_ge0 c pi q v : 0 <= residual c pi q v.
Proof. exact: positive_ge0. Qed.

Lemma residual_mass_ge0 c pi q : 0 <= mass (residual c pi q).
Proof. by apply: mass_ge0 => v; apply: residual_ge0. Qed.

Lemma one_hot_law y : law (one_hot y).
Proof.
split=> [v|]; first exact: ler0n.
by rewrite /mass (bigD1 y) //= /one_hot eqxx big1 ?addr0 // => v /negbTE ->.
Qed.

Lemma law_ge0 p v : law p -> 0 <= p v. Proof. by case. Qed.
Lemma law_mass p : law p -> mass p = 1. Proof. by case. Qed.

Lemma law_le1 p v : law p -> p v <= 1.
Proof.
case=> p0 <-; rewrite /mass (bigD1 v) //= ler_addl.
by apply: sumr_ge0.
Qed.

Lemma norm_or_law other w : law other -> (forall v, 0 <= w v) -> law (norm_or other w).
Proof.
move=> [o0 o1] w0; rewrite /norm_or; case m0: (0 < mass w) => //; split=> [v|].
- by rewrite divr_ge0 // ltW.
- by rewrite {1}/mass -mulr_suml -/(mass w) divff // gt_eqF.
Qed.

(* ---- draws ----------------------------------------------------------------------------------------------------- *)

Lemma draw_ext w f g : (forall v, f v = g v) -> draw w f = draw w g.
Proof. by move=> fg; apply: eq_bigr => v _; rewrite fg. Qed.

Lemma draw_row_ext w w' f : (forall v, w v = w' v) -> draw w f = draw w' f.
Proof. by move=> ww; apply: eq_bigr => v _; rewrite ww. Qed.

Lemma draw_const w (c : R) : draw w (fun=> c) = mass w * c.
Proof. by rewrite /draw -mulr_suml. Qed.

Lemma draw_law_const p (c : R) : law p -> draw p (fun=> c) = c.
Proof. by move=> [_ p1]; rewrite draw_const p1 mul1r. Qed.

Lemma draw_add w f g : draw w (fun v => f v + g v) = draw w f + draw w g.
Proof. by rewrite /draw -big_split; apply: eq_bigr => v _; rewrite mulrDr. Qed.

Lemma draw_scale w (c : R) f : draw w (fun v => c * f v) = c * draw w f.
Proof. by rewrite /draw mulr_sumr; apply: eq_bigr => v _; rewrite mulrCA. Qed.

Lemma draw_row_scale w (c : R) f : draw (fun v => c * w v) f = c * draw w f.
Proof. by rewrite /draw mulr_sumr; apply: eq_bigr => v _; rewrite mulrA. Qed.

Lemma draw_row_add w w' f : draw (fun v => w v + w' v) f = draw w f + draw w' f.
Proof. by rewrite /draw -big_split; apply: eq_bigr => v _; rewrite mulrDl. Qed.

Lemma draw_one_hot y f : draw (one_hot y) f = f y.
Proof.
rewrite /draw (bigD1 y) //= /one_hot eqxx mul1r big1 ?addr0 // => v /negbTE ->.
by rewrite mul0r.
Qed.

(* A normalised draw, times the mass, is the draw with the weights themselves: also where there is no mass. *)
Lemma mass_draw_norm other w f : (forall v, 0 <= w v) -> mass w * draw (norm_or other w) f = draw w f.
Proof.
move=> w0; rewrite /norm_or; case: (ltrP 0 (mass w)) => m0.
- rewrite /draw mulr_sumr; apply: eq_bigr => v _ /=.
  by rewrite mulrA [mass w * _]mulrC divfK // gt_eqF.
- have m_0 : mass w = 0 by apply/le_anti; rewrite m0 mass_ge0.
  by rewrite m_0 mul0r /draw big1 // => v _; rewrite (mass0_row w0 m_0) mul0r.
Qed.

(* ---- shares, overlaps, residuals ------------------------------------------------------------------------------- *)

Lemma share_ge0 (w t : R) : 0 <= w -> 0 <= share w t.
Proof.
move=> w0; rewrite /share; case: ltrP => h; last exact: ler01.
by rewrite divr_ge0 // (le_trans w0 (ltW h)).
Qed.

Lemma share_le1 (w t : R) : 0 <= w -> share w t <= 1.
Proof.
move=> w0; rewrite /share; case: ltrP => h; last exact: lexx.
by rewrite ler_pdivr_mulr ?mul1r ?ltW // (le_lt_trans w0 h).
Qed.

(* Drawn with probability t and kept with probability share w t: kept with probability min(w, t). *)
Lemma mul_share (w t : R) : 0 <= w -> 0 <= t -> t * share w t = Num.min w t.
Proof.
move=> w0 t0; rewrite /share; case: ltrP => h.
- by rewrite mulrC divfK // gt_eqF // (le_lt_trans w0 h).
- by rewrite mulr1.
Qed.

(* The header's condition U * t < w has this probability for U uniform in [0, 1): the length of [0, w / t) in it. *)
Lemma share_min (w t : R) : 0 <= w -> 0 < t -> share w t = Num.min 1 (w / t).
Proof.
move=> w0 t0; rewrite /share; case: ltrP => h.
- by rewrite min_r // ler_pdivr_mulr // mul1r ltW.
- by rewrite min_l // ler_pdivl_mulr // mul1r.
Qed.

Lemma overlap_residual (c : R) pi q : overlap (fun v => c * pi v) q + mass (residual c pi q) = c * mass pi.
Proof.
rewrite /overlap /mass -big_split mulr_sumr; apply: eq_bigr => v _.
exact: positive_split.
Qed.

Lemma overlapC a b : overlap a b = overlap b a.
Proof. by apply: eq_bigr => v _; rewrite minC. Qed.

Lemma tv_overlap a b : mass a = 1 -> mass b = 1 -> tv a b = 1 - overlap a b.
Proof.
move=> a1 b1; have e : \sum_v `|a v - b v| + (overlap a b + overlap a b) = mass a + mass b.
  rewrite /mass /overlap -!big_split; apply: eq_bigr => v _ /=; case: (lerP (a v) (b v)) => h.
  - by rewrite addrA subrK addrC.
  - by rewrite addrA subrK.
have {}e : \sum_v `|a v - b v| = (1 - overlap a b) * 2%:R.
  by apply: (addIr (overlap a b + overlap a b)); rewrite e a1 b1 mulr_natr mulrnBl -mulr2n subrK.
by rewrite /tv e mulrC mulfK // pnatr_eq0.
Qed.

Lemma tvC a b : tv a b = tv b a.
Proof. by rewrite /tv; congr (_ * _); apply: eq_bigr => v _; rewrite distrC. Qed.

Lemma tv_residual q pi : mass q = 1 -> mass pi = 1 -> tv q pi = mass (residual 1 pi q).
Proof.
move=> q1 pi1; rewrite tv_overlap // overlapC.
have := overlap_residual 1 pi q; rewrite pi1 mulr1.
rewrite (_ : overlap (fun v => 1 * pi v) q = overlap pi q); last by apply: eq_bigr => v _; rewrite mul1r.
by move=> e; rewrite -{1}e addrC addKr.
Qed.

Lemma overlap_ge0 a b : (forall v, 0 <= a v) -> (forall v, 0 <= b v) -> 0 <= overlap a b.
Proof. by move=> a0 b0; apply: sumr_ge0 => v _; rewrite le_minr a0 b0. Qed.

Lemma overlap_le_mass a b : overlap a b <= mass b.
Proof. by apply: ler_sum => v _; rewrite le_minl lexx orbT. Qed.

(* ---- expectations ---------------------------------------------------------------------------------------------- *)

(* E is the expected value of V at a random text: linear, not negative where V is not, and 1 for V = 1. *)
Definition expectation (E : (seq T -> R) -> R) : Prop :=
  [/\ forall V, (forall s, 0 <= V s) -> 0 <= E V, E (fun=> 1) = 1
    & forall c d V W, E (fun s => c * V s + d * W s) = c * E V + d * E W].

Lemma draw_ge0 w f : (forall v, 0 <= w v) -> (forall v, 0 <= f v) -> 0 <= draw w f.
Proof. by move=> w0 f0; apply: sumr_ge0 => v _; rewrite mulr_ge0. Qed.

Lemma draw_linear w (c d : R) f g : draw w (fun v => c * f v + d * g v) = c * draw w f + d * draw w g.
Proof. by rewrite draw_add !draw_scale. Qed.

Lemma coin_ge0 (h yes no : R) : 0 <= h -> h <= 1 -> 0 <= yes -> 0 <= no -> 0 <= coin h yes no.
Proof. by move=> h0 h1 y0 n0; rewrite addr_ge0 // mulr_ge0 // subr_ge0. Qed.

Lemma coin_const (h c : R) : coin h c c = c.
Proof. by rewrite /coin -mulrDl addrC subrK mul1r. Qed.

Lemma coin_linear (h c d yes yes' no no' : R) :
  coin h (c * yes + d * yes') (c * no + d * no') = c * coin h yes no + d * coin h yes' no'.
Proof. by rewrite /coin !mulrDr addrACA !(mulrCA h) !(mulrCA (1 - h)). Qed.

(* ---- texts ----------------------------------------------------------------------------------------------------- *)

(* n tokens, each drawn from pi given the text before it; then f of the text. *)
Fixpoint ancestral (pi : seq T -> T -> R) (n : nat) s (f : seq T -> R) : R :=
  if n is n'.+1 then draw (pi s) (fun y => ancestral pi n' (rcons s y) f) else f s.

Definition continued (pi : seq T -> T -> R) (N : nat) (f : seq T -> R) s : R :=
  ancestral pi (N - size s) s (fun t => f (take N t)).

(* A procedure that extends a text: the text, and the value of every longer text, to the expected value. *)
Definition procedure := seq T -> (seq T -> R) -> R.

(* The text that it leaves, continued from pi, has the joint law of ancestral sampling from pi. *)
Definition emits (pi : seq T -> T -> R) (round : procedure) : Prop :=
  forall N f s, round s (continued pi N f) = continued pi N f s.

(* All that a proof uses of `continued pi N f`: its value at a text is the mean, by pi, over the next token. *)
Definition promised (pi : seq T -> T -> R) (V : seq T -> R) : Prop :=
  forall s, V s = draw (pi s) (fun y => V (rcons s y)).

Lemma continued_promised (pi : seq T -> T -> R) N f : (forall s, law (pi s)) -> promised pi (continued pi N f).
Proof.
move=> pi_law s; rewrite /continued; case: (ltnP (size s) N) => h.
- rewrite (_ : (N - size s = (N - (size s).+1).+1)%N); last by rewrite -subSn.
  by apply: draw_ext => y; rewrite size_rcons.
- rewrite (_ : (N - size s = 0)%N); last by apply/eqP; rewrite subn_eq0.
  rewrite /= -[LHS](draw_law_const _ (pi_law s)); apply: draw_ext => y.
  rewrite size_rcons (_ : (N - (size s).+1 = 0)%N) /=; last by apply/eqP; rewrite subn_eq0 leqW.
  by rewrite -cats1 takel_cat.
Qed.

Lemma emits_of_promised (pi : seq T -> T -> R) (round : procedure) :
  (forall s, law (pi s)) -> (forall V s, promised pi V -> round s V = V s) -> emits pi round.
Proof. by move=> pi_law h N f s; apply: h; apply: continued_promised. Qed.

(* The probability that pi writes the tokens t after s. *)
Fixpoint probability (pi : seq T -> T -> R) s (t : seq T) : R :=
  if t is y :: t' then pi s y * probability pi (rcons s y) t' else 1.

(* With the indicator of a text, `continued` from the empty text is the text's probability. *)
Lemma ancestral_probability (pi : seq T -> T -> R) s t :
  ancestral pi (size t) s (fun u => (u == s ++ t)%:R) = probability pi s t.
Proof.
elim: t s => [|y t ih] s /=; first by rewrite cats0 eqxx.
rewrite /draw (bigD1 y) //= -cat_rcons ih big1 ?addr0 // => v ne.
rewrite (_ : ancestral _ _ _ _ = 0) ?mulr0 //.
have: forall n r, (size s < size r)%N -> nth y r (size s) = v ->
  ancestral pi n r (fun u => (u == rcons s y ++ t)%:R) = 0.
  elim=> [|n ihn] r hr hv /=.
  - case: eqP => // e; move: hv; rewrite e cat_rcons nth_cat ltnn subnn /= => e'.
    by rewrite e' eqxx in ne.
  - rewrite /draw big1 // => z _; rewrite ihn ?mulr0 // ?size_rcons ?leqW //.
    by rewrite nth_rcons hr.
by apply; rewrite ?size_rcons // nth_rcons ltnn eqxx.
Qed.

Theorem probability_of_text (pi : seq T -> T -> R) t :
  continued pi (size t) (fun u => (u == t)%:R) [::] = probability pi [::] t.
Proof.
rewrite /continued subn0 -ancestral_probability /=.
have: forall n r, (size r + n = size t)%N ->
  ancestral pi n r (fun u => (take (size t) u == t)%:R) = ancestral pi n r (fun u => (u == t)%:R).
  elim=> [|n ih] r hr /=; first by rewrite take_oversize // -hr addn0.
  by apply: draw_ext => y; apply: ih; rewrite size_rcons addSnnS.
exact.
Qed.

End Law.
