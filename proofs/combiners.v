(* SPDX-License-Identifier: Apache-2.0
   Which combiners are an F of unanimous.v and exchange.v: increasing in each coordinate, and 1-homogeneous
   (include/specagg/policy/extremes.hpp, power.hpp, log_linear.hpp; mixtures are in unanimous.v).

     minimum_combines, maximum_combines   min and max
     power_mean_combines                  (sum w x^rho)^(1/rho), rho > 0, weights >= 0
     negative_power_mean_combines         the same for rho < 0, weights >= 0 with sum 1; 0 where an x of weight > 0 is 0
     geometric_combines                   prod x^w, weights >= 0 with sum 1

   The rationals have no square roots, so a power is a pair of functions with the properties that are used: x -> x^rho
   is an increasing, multiplicative bijection of the numbers >= 0 (`power`). In every real closed field (the reals are
   one, the real algebraic numbers another) all positive rational exponents have them: `rational_power`, and
   `rational_weights` for the weights of a geometric mean. The real numbers have them for all real exponents; that is
   not proved here. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import unanimous.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* Whether F is one. *)
Definition combines (R : realFieldType) n (F : ('I_n -> R) -> R) : Prop := increasing F /\ homogeneous F.

(* ---- min and max ------------------------------------------------------------------------------------------------- *)

Section Extremes.
Variables (R : realFieldType) (n : nat).
Implicit Types x y : 'I_n.+1 -> R.

Definition least x : R := \big[Num.min/x ord0]_k x k.
Definition most x : R := \big[Num.max/x ord0]_k x k.

Theorem minimum_combines : combines least.
Proof.
split=> [x y xy|t x t0 x0]; last first.
  by apply/esym; apply: (big_morph (fun z => t * z)) => // a b; apply: minr_pmulr; apply: ltW.
rewrite /least; elim/big_ind2: _ => [|a b c d ab cd|k _]; [by case/andP: (xy ord0) | | by case/andP: (xy k)].
by rewrite le_minr !le_minl ab cd orbT.
Qed.

Theorem maximum_combines : combines most.
Proof.
split=> [x y xy|t x t0 x0]; last first.
  by apply/esym; apply: (big_morph (fun z => t * z)) => // a b; apply: maxr_pmulr; apply: ltW.
rewrite /most; elim/big_ind2: _ => [|a b c d ab cd|k _]; [by case/andP: (xy ord0) | | by case/andP: (xy k)].
by rewrite le_maxl !le_maxr ab cd orbT.
Qed.
End Extremes.

(* ---- powers ------------------------------------------------------------------------------------------------------ *)

Section Powers.
Variable R : realFieldType.
Implicit Types (f g : R -> R) (x y : R).

(* f x = x^w for a w >= 0; x^0 = 1 for all x. *)
Definition weak_power f : Prop :=
  [/\ forall x, 0 <= x -> 0 <= f x, forall x y, 0 <= x -> 0 <= y -> f (x * y) = f x * f y
    & forall x y, 0 <= x -> x <= y -> f x <= f y].
(* f x = x^rho and g x = x^(1/rho) for a rho > 0. *)
Definition power f g : Prop :=
  weak_power f /\ forall x, 0 <= x -> [/\ 0 <= g x, f (g x) = x & g (f x) = x].

Section Power.
Variables f g : R -> R.
Hypothesis fg : power f g.

Lemma power_ge0 x : 0 <= x -> 0 <= f x. Proof. by case: fg => -[h _ _] _; apply: h. Qed.
Lemma power_mul x y : 0 <= x -> 0 <= y -> f (x * y) = f x * f y. Proof. by case: fg => -[_ h _] _; apply: h. Qed.
Lemma power_le x y : 0 <= x -> x <= y -> f x <= f y. Proof. by case: fg => -[_ _ h] _; apply: h. Qed.
Lemma inverse_ge0 x : 0 <= x -> 0 <= g x. Proof. by case: fg => _ h /h []. Qed.
Lemma power_inverse x : 0 <= x -> f (g x) = x. Proof. by case: fg => _ h /h []. Qed.
Lemma inverse_power x : 0 <= x -> g (f x) = x. Proof. by case: fg => _ h /h []. Qed.

Lemma inverse_le x y : 0 <= x -> x <= y -> g x <= g y.
Proof.
move=> x0 xy; have y0 := le_trans x0 xy; case: (lerP (g x) (g y)) => // lt.
have := power_le (inverse_ge0 y0) (ltW lt); rewrite !power_inverse // => yx.
by move: lt; rewrite (_ : x = y) ?ltxx //; apply/le_anti; rewrite xy yx.
Qed.

Lemma inverse_scale x y : 0 <= x -> 0 <= y -> g (f x * y) = x * g y.
Proof.
by move=> x0 y0; rewrite -{1}(power_inverse y0) -power_mul ?inverse_power ?mulr_ge0 ?inverse_ge0.
Qed.

Lemma power_gt0 x : 0 < x -> 0 < f x.
Proof.
move=> x0; rewrite lt_neqAle power_ge0 1?ltW // andbT eq_sym; apply/negP => /eqP fx.
have f0 : f 0 = 0.
  by apply/le_anti; rewrite power_ge0 // andbT -[leRHS]fx power_le // ltW.
by have := inverse_power (ltW x0); rewrite fx -f0 inverse_power // => e; rewrite e ltxx in x0.
Qed.

Lemma inverse_gt0 x : 0 < x -> 0 < g x.
Proof.
move=> x0; rewrite lt_neqAle inverse_ge0 1?ltW // andbT eq_sym; apply/negP => /eqP gx.
have g0 : g 0 = 0.
  by apply/le_anti; rewrite inverse_ge0 // andbT -[leRHS]gx inverse_le // ltW.
by have := power_inverse (ltW x0); rewrite gx -g0 power_inverse // => e; rewrite e ltxx in x0.
Qed.

(* ---- power means ------------------------------------------------------------------------------------------------- *)

Variables (n : nat) (weight : 'I_n -> R).
Hypothesis weight_ge0 : forall k, 0 <= weight k.

Definition power_mean (x : 'I_n -> R) : R := g (\sum_k weight k * f (x k)).

(* For rho < 0: 1 / (sum w (1/x)^|rho|)^(1/|rho|). *)
Definition negative_power_mean (x : 'I_n -> R) : R :=
  if [forall k, (weight k == 0) || (0 < x k)] then (g (\sum_k weight k * f (x k)^-1))^-1 else 0.

Lemma sum_powers_ge0 (x : 'I_n -> R) : (forall k, 0 <= x k) -> 0 <= \sum_k weight k * f (x k).
Proof. by move=> x0; apply: sumr_ge0 => k _; rewrite mulr_ge0 // power_ge0. Qed.

Theorem power_mean_combines : combines power_mean.
Proof.
split=> [x y xy|t x t0 x0]; rewrite /power_mean.
- have x0 k : 0 <= x k by case/andP: (xy k).
  apply: inverse_le; first exact: sum_powers_ge0.
  by apply: ler_sum => k _; rewrite ler_wpmul2l // power_le //; case/andP: (xy k).
- have t0' := ltW t0; rewrite -inverse_scale ?sum_powers_ge0 //; congr g; rewrite mulr_sumr; apply: eq_bigr => k _.
  by rewrite power_mul // mulrCA.
Qed.

Theorem negative_power_mean_combines : \sum_k weight k = 1 -> combines negative_power_mean.
Proof.
move=> weight_1.
pose all_have (x : 'I_n -> R) := [forall k, (weight k == 0) || (0 < x k)].
pose S (x : 'I_n -> R) := \sum_k weight k * f (x k)^-1.
have S_gt0 (x : 'I_n -> R) : (forall k, 0 <= x k) -> all_have x -> 0 < S x.
  move=> x0 /forallP h; have [k wk] : exists k, weight k != 0.
    apply/existsP; rewrite -negb_forall; apply/negP => /forallP z; move: weight_1.
    by rewrite big1 => [/esym/eqP|k _]; [rewrite oner_eq0 | apply/eqP].
  rewrite /S (bigD1 k) //= ltr_paddr ?sumr_ge0 // => [i _|].
    by rewrite mulr_ge0 // power_ge0 // invr_ge0.
  have := h k; rewrite (negbTE wk) /= => xk.
  by rewrite mulr_gt0 ?power_gt0 ?invr_gt0 // lt_neqAle eq_sym wk weight_ge0.
split=> [x y xy|t x t0 x0]; rewrite /negative_power_mean.
- have x0 k : 0 <= x k by case/andP: (xy k).
  have y0 k : 0 <= y k by case/andP: (xy k) => a; apply: le_trans.
  case: (boolP (all_have x)) => [hx|/negbTE hx]; rewrite -?/(all_have x) ?hx -/(S x) -/(S y); last first.
    case: ifP => hy //; rewrite invr_ge0 ltW // inverse_gt0 //; exact: S_gt0.
  have hy : all_have y.
    apply/forallP => k; have /forallP /(_ k) := hx; case: (weight k == 0) => //= xk.
    by apply: lt_le_trans xk _; case/andP: (xy k).
  rewrite -/(all_have y) hy lef_pinv ?posrE ?inverse_gt0 ?S_gt0 //.
  apply: inverse_le; first by rewrite ltW // S_gt0.
  apply: ler_sum => k _; have /forallP /(_ k) := hx; case: eqP => [-> _|_ /= xk]; first by rewrite !mul0r.
  rewrite ler_wpmul2l // power_le ?invr_ge0 //; case/andP: (xy k) => _ le.
  by rewrite lef_pinv ?posrE // (lt_le_trans xk).
- have e : [forall k, (weight k == 0) || (0 < t * x k)] = all_have x.
    by apply: eq_forallb => k; rewrite pmulr_rgt0.
  rewrite e -/(all_have x); case: ifP => hx; last by rewrite mulr0.
  rewrite -[t in RHS]invrK -invfM; congr (_^-1).
  have t0' := ltW t0; have t' : 0 <= t^-1 by rewrite invr_ge0.
  rewrite -inverse_scale //; last by rewrite ltW // -/(S x) S_gt0.
  by congr g; rewrite mulr_sumr; apply: eq_bigr => k _; rewrite invfM power_mul ?invr_ge0 // mulrCA.
Qed.
End Power.

(* ---- geometric means --------------------------------------------------------------------------------------------- *)

Definition geometric_mean n (f : 'I_n -> R -> R) (x : 'I_n -> R) : R := \prod_k f k (x k).

(* f k x = x^w_k; the weights' sum is 1. *)
Theorem geometric_combines n (f : 'I_n -> R -> R) :
  (forall k, weak_power (f k)) -> (forall t, 0 < t -> \prod_k f k t = t) -> combines (geometric_mean f).
Proof.
move=> hf h1; split=> [x y xy|t x t0 x0]; rewrite /geometric_mean.
- apply: ler_prod => k _; case/andP: (xy k) => x0 le.
  by case: (hf k) => f0 _ fle; rewrite f0 // fle.
- rewrite -{2}(h1 t t0) -big_split; apply: eq_bigr => k _.
  by case: (hf k) => _ -> //; apply: ltW.
Qed.
End Powers.

(* ---- rational exponents ------------------------------------------------------------------------------------------ *)

(* rho = 1, in any ordered field: the mixture, and for rho = -1 the harmonic mean. *)
Lemma power_1 (R : realFieldType) : power (fun x : R => x) (fun x => x).
Proof. by split. Qed.

Section Rational.
Variable R : rcfType.
Implicit Types x y : R.

Lemma root_exists n x : exists r : R, (0 <= r) && ((0 < n)%N && (0 <= x) ==> (r ^+ n == x)).
Proof.
case: (boolP ((0 < n)%N && (0 <= x))) => [/andP [n0 x0]|_]; last by exists 0; rewrite lexx.
have le : 0 <= 1 + x by rewrite addr_ge0 // ler01.
have [|r /andP [r0 _]] := @poly_ivt R ('X^n - x%:P) 0 (1 + x) le.
  rewrite !hornerE !hornerXn expr0n gtn_eqF //= add0r oppr_le0 x0 subr_ge0.
  apply: (@le_trans _ _ (1 + x)); first by rewrite ler_addr ler01.
  by rewrite ler_eexpr // ler_addl.
by rewrite rootE !hornerE hornerXn subr_eq0 => e; exists r; rewrite r0.
Qed.

(* The root of degree n of the numbers >= 0. *)
Definition nth_root n x : R := xchoose (root_exists n x).

Section Root.
Variables (n : nat) (n0 : (0 < n)%N).

Lemma nth_root_ge0 x : 0 <= nth_root n x.
Proof. by case/andP: (xchooseP (root_exists n x)). Qed.

Lemma nth_rootK x : 0 <= x -> nth_root n x ^+ n = x.
Proof. by move=> x0; case/andP: (xchooseP (root_exists n x)) => _ /implyP; move=> /(_ _)/eqP; apply; rewrite n0. Qed.

Lemma nth_root_unique x y : 0 <= x -> x ^+ n = y -> nth_root n y = x.
Proof.
move=> x0 e; have y0 : 0 <= y by rewrite -e exprn_ge0.
by apply/eqP; rewrite -(eqr_expn2 n0) ?nth_root_ge0 // nth_rootK // e.
Qed.

Lemma nth_root_mul x y : 0 <= x -> 0 <= y -> nth_root n (x * y) = nth_root n x * nth_root n y.
Proof. by move=> x0 y0; apply: nth_root_unique; rewrite ?mulr_ge0 ?nth_root_ge0 // exprMn !nth_rootK. Qed.

Lemma nth_root_le x y : 0 <= x -> x <= y -> nth_root n x <= nth_root n y.
Proof.
by move=> x0 xy; rewrite -(ler_pexpn2r n0) ?nnegrE ?nth_root_ge0 // !nth_rootK // (le_trans x0).
Qed.

(* x^(m/n) *)
Lemma rational_weak_power m : weak_power (fun x => nth_root n x ^+ m).
Proof.
split=> [x x0|x y x0 y0|x y x0 xy]; first by rewrite exprn_ge0 // nth_root_ge0.
- by rewrite nth_root_mul // exprMn.
- by rewrite ler_expn2r ?nnegrE ?nth_root_ge0 // nth_root_le.
Qed.
End Root.

(* The exponent m/n, and its inverse n/m. *)
Theorem rational_power m n : (0 < m)%N -> (0 < n)%N ->
  power (fun x => nth_root n x ^+ m) (fun x => nth_root m x ^+ n).
Proof.
move=> m0 n0; split=> [|x x0]; first exact: rational_weak_power.
split; first by rewrite exprn_ge0 // nth_root_ge0.
- by rewrite (nth_root_unique n0 (x := nth_root m x)) ?nth_root_ge0 // nth_rootK.
- by rewrite (nth_root_unique m0 (x := nth_root n x)) ?nth_root_ge0 // nth_rootK.
Qed.

(* The weights m_k / n, with sum 1. *)
Theorem rational_weights n sites (m : 'I_sites -> nat) : (0 < n)%N -> (\sum_k m k = n)%N ->
  (forall k, weak_power (fun x => nth_root n x ^+ m k)) /\ (forall t, 0 < t -> \prod_k nth_root n t ^+ m k = t).
Proof.
move=> n0 e; split=> [k|t t0]; first exact: rational_weak_power.
by rewrite prodrXr e nth_rootK // ltW.
Qed.
End Rational.
