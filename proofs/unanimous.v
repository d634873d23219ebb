(* SPDX-License-Identifier: Apache-2.0
   Unanimity (include/specagg/verify/unanimous.hpp): sites race with one noise E. If all have the winner i, then i wins
   the race of the combined row F(p^1 .. p^n), for every F that increases in each coordinate and is 1-homogeneous.

     unanimous_winner    the theorem, ties included (the lower id wins)
     wins_normalised     the race of pi = norm F is the race of F
     mixture_combines    weighted sums are such F; combiners.v has the others *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Unanimous.
Variables (R : realFieldType) (size_of_vocabulary sites : nat).
Local Notation token := 'I_size_of_vocabulary.
Local Notation site := 'I_sites.
Implicit Types (i j : token) (k : site) (w E : token -> R).

(* A token's score in the race: its weight over its noise. *)
Definition score E w i : R := w i / E i.
(* Whether a comes before b: larger score, then lower id. *)
Definition before E w i j : bool := (score E w j < score E w i) || ((score E w i == score E w j) && (i < j)%N).
(* Only tokens with weight race. *)
Definition wins E w i : Prop := 0 < w i /\ forall j, j != i -> before E w i j.

(* A law norm w has the winner of its weights w. *)
Lemma wins_normalised E w i : 0 < \sum_v w v -> wins E (fun v => w v / \sum_u w u) i <-> wins E w i.
Proof.
move=> m0; have e v : score E (fun u => w u / \sum_u w u) v = score E w v / \sum_u w u by rewrite /score mulrAC.
have b j : before E (fun u => w u / \sum_u w u) i j = before E w i j.
  by rewrite /before !e ltr_pmul2r ?invr_gt0 // (inj_eq (mulIf _)) // invr_eq0 gt_eqF.
by rewrite /wins pmulr_lgt0 ?invr_gt0 //; split=> -[w0 h]; split=> // j /h; rewrite b.
Qed.

Definition increasing (F : (site -> R) -> R) : Prop :=
  forall x y, (forall k, 0 <= x k <= y k) -> F x <= F y.
Definition homogeneous (F : (site -> R) -> R) : Prop :=
  forall t x, 0 < t -> (forall k, 0 <= x k) -> F (fun k => t * x k) = t * F x.
Definition combined (F : (site -> R) -> R) (p : site -> token -> R) : token -> R := fun v => F (fun k => p k v).

Section Agreement.
Variables (F : (site -> R) -> R) (p : site -> token -> R) (E : token -> R) (i : token).
Hypotheses (F_increasing : increasing F) (F_homogeneous : homogeneous F).
Hypotheses (p_ge0 : forall k v, 0 <= p k v) (E_gt0 : forall v, 0 < E v).
Hypothesis (all_agree : forall k, wins E (p k) i).

Lemma combined_score v : score E (combined F p) v = F (fun k => score E (p k) v).
Proof.
rewrite /score /combined mulrC -F_homogeneous ?invr_gt0 //.
by apply: le_anti; apply/andP; split; apply: F_increasing => k; rewrite [_^-1 * _]mulrC lexx divr_ge0 // ltW.
Qed.

Lemma site_score_ge0 k v : 0 <= score E (p k) v.
Proof. by rewrite divr_ge0 // ltW. Qed.

Lemma site_score_gt0 k : 0 < score E (p k) i.
Proof. by case: (all_agree k) => w0 _; rewrite divr_gt0. Qed.

Lemma site_score_le k v : score E (p k) v <= score E (p k) i.
Proof.
case: (eqVneq v i) => [->|ne]; first exact: lexx.
case: (all_agree k) => _ /(_ v ne); rewrite /before => /orP [/ltW //|/andP [/eqP -> _]].
exact: lexx.
Qed.

Lemma combined_score_le v : score E (combined F p) v <= score E (combined F p) i.
Proof. by rewrite !combined_score; apply: F_increasing => k; rewrite site_score_ge0 site_score_le. Qed.

(* A row that is smaller in every coordinate has a smaller F, if F is not 0: F is homogeneous. *)
Lemma strict (x y : site -> R) :
  (forall k, 0 <= x k) -> (forall k, x k < y k) -> 0 < F y -> F x < F y.
Proof.
move=> x0 xy Fy.
have y0 k : 0 < y k by apply: le_lt_trans (x0 k) (xy k).
pose c := \big[Num.max/2%:R^-1]_k (x k / y k).
have half0 : 0 < 2%:R^-1 :> R by rewrite invr_gt0 ltr0n.
have half1 : 2%:R^-1 < 1 :> R by rewrite invf_lt1 ?ltr0n // ltr1n.
have c1 : c < 1.
  rewrite /c; elim/big_ind: _ => // [a b a1 b1|k _]; first by rewrite lt_maxl a1 b1.
  by rewrite ltr_pdivr_mulr ?mul1r.
have c0 : 0 < c.
  rewrite /c; elim/big_rec: _ => // k a _ a0; by rewrite lt_maxr a0 orbT.
have xc k : x k <= c * y k.
  rewrite -ler_pdivr_mulr // /c; have := mem_index_enum k; elim: (index_enum _) => // l r ih.
  by rewrite inE big_cons le_maxr => /orP [/eqP <-|/ih ->]; rewrite ?lexx ?orbT.
apply: (@le_lt_trans _ _ (F (fun k => c * y k))); first by apply: F_increasing => k; rewrite x0 xc.
by rewrite F_homogeneous // => [|k]; [rewrite -{2}[F y]mul1r ltr_pmul2r | rewrite ltW].
Qed.

(* Where some token has combined weight, that is, where the combined law exists. *)
Theorem unanimous_winner : (exists v, 0 < combined F p v) -> wins E (combined F p) i.
Proof.
move=> [v Fv].
have Fi : 0 < score E (combined F p) i.
  by apply: lt_le_trans (combined_score_le v); rewrite divr_gt0.
split; first by move: Fi; rewrite /score pmulr_lgt0 ?invr_gt0.
move=> j ne; rewrite /before; have := combined_score_le j; rewrite le_eqVlt => /orP [/eqP e|->] //.
rewrite e eqxx ltxx /= ltn_neqAle eq_sym (inj_eq val_inj) ne /= leqNgt; apply/negP => ji.
suff: score E (combined F p) j < score E (combined F p) i by rewrite e ltxx.
rewrite !combined_score; apply: strict => [k|k|]; first exact: site_score_ge0.
- case: (all_agree k) => _ /(_ j ne); rewrite /before => /orP [//|/andP [_ ij]].
  by move: (ltn_trans ji ij); rewrite ltnn.
- by rewrite -combined_score.
Qed.
End Agreement.

Lemma mixture_combines (weight : site -> R) :
  (forall k, 0 <= weight k) ->
  increasing (fun x => \sum_k weight k * x k) /\ homogeneous (fun x => \sum_k weight k * x k).
Proof.
move=> w0; split=> [x y xy|t x _ _].
- by apply: ler_sum => k _; apply: ler_wpmul2l => //; case/andP: (xy k).
- by rewrite mulr_sumr; apply: eq_bigr => k _; rewrite mulrCA.
Qed.
End Unanimous.
