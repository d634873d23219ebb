(* SPDX-License-Identifier: Apache-2.0
   Policies (include/specagg/policy/): the law pi of each policy is a law where it is defined: non-negative, with sum 1.
   Narasimhan et al. 2025 (arXiv:2405.19261), Tran-Thien 2023, Fu et al. 2025 (arXiv:2502.01662).

     target_if_law, ensemble_law, mixture_law, token_cascade_law, normalised_law, softmax_of_law
     lossy_law                     for every alpha and beta, also where S = 0
     exact_beta_exists             some beta >= 1 has S = R; there pi = max(min(q, p / (1 - alpha)), p / beta)
     printed_formula_is_a_law_iff  that formula, as papers print it, is a law only if S = R
     target_if_frontier, ensemble_frontier, lossy_frontier
                                   P(reject) + TV(pi, p) = TV(q, p): deferral rules, mixtures, lossy with beta >= 1 and
                                   R <= S (so beta = 1 and the exact beta)
     token_cascade_rejection       sum over r(v) = 1 of (q - eta p)+

   A deferral rule decides by any test: what `defer` and `r` look at (entropies, confidence rows) does not matter. The
   functions exp, pow and log of the C++ are real functions; here exp is any function that is positive, and pow any that
   is not negative. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Policies.
Variables (T : finType) (R : realFieldType).
Implicit Types (v : T) (p q : T -> R).

Lemma positive_le (a b : R) : a <= b -> positive a <= positive b.
Proof. by move=> h; rewrite /positive le_maxl !le_maxr h lexx !orbT. Qed.

(* The largest value of a row. *)
Definition top (w : T -> R) : R := \big[Num.max/0]_v w v.

(* ---- lossless, and policies that choose a row ------------------------------------------------------------------ *)

Definition lossless p : T -> R := p.
Definition target_if (defer : bool) q p : T -> R := fun v => if defer then p v else q v.
Definition chow (alpha : R) q p := target_if (top q < 1 - alpha) q p.
Definition diff (alpha : R) q p := target_if (top q < top p - alpha) q p.
Definition opt (alpha : R) q p := target_if (top q < top p - alpha * tv p q) q p.

Theorem target_if_law defer q p : law q -> law p -> law (target_if defer q p).
Proof. by case: defer. Qed.

Corollary chow_law alpha q p : law q -> law p -> law (chow alpha q p).
Proof. exact: target_if_law. Qed.
Corollary diff_law alpha q p : law q -> law p -> law (diff alpha q p).
Proof. exact: target_if_law. Qed.
Corollary opt_law alpha q p : law q -> law p -> law (opt alpha q p).
Proof. exact: target_if_law. Qed.

(* ---- mixtures -------------------------------------------------------------------------------------------------- *)

Definition mixture n (weight : 'I_n -> R) (rows : 'I_n -> T -> R) : T -> R := fun v => \sum_k weight k * rows k v.
Definition ensemble (lambda : R) q p : T -> R := fun v => lambda * q v + (1 - lambda) * p v.

Theorem mixture_law n (weight : 'I_n -> R) (rows : 'I_n -> T -> R) :
  (forall k, 0 <= weight k) -> \sum_k weight k = 1 -> (forall k, law (rows k)) -> law (mixture weight rows).
Proof.
move=> w0 w1 rows_law; split=> [v|].
- by apply: sumr_ge0 => k _; rewrite mulr_ge0 // law_ge0.
- rewrite /mass exchange_big /= -[RHS]w1; apply: eq_bigr => k _.
  by rewrite -mulr_sumr -/(mass _) (law_mass (rows_law k)) mulr1.
Qed.

Theorem ensemble_law lambda q p : 0 <= lambda <= 1 -> law q -> law p -> law (ensemble lambda q p).
Proof.
move=> /andP [l0 l1] q_law p_law; split=> [v|].
- by rewrite addr_ge0 // mulr_ge0 ?law_ge0 // subr_ge0.
- rewrite /mass /ensemble big_split /= -!mulr_sumr -!/(mass _) (law_mass q_law) (law_mass p_law).
  by rewrite !mulr1 addrC subrK.
Qed.

(* ---- weights that are normalised: power means, minimum, maximum, products of powers, softmax --------------------- *)

Definition normalised (w : T -> R) : T -> R := fun v => w v / mass w.

(* Where no token has weight there is no law: the library reports undefined_target. *)
Theorem normalised_law (w : T -> R) : (forall v, 0 <= w v) -> 0 < mass w -> law (normalised w).
Proof.
move=> w0 m0; split=> [v|]; first by rewrite divr_ge0 // ltW.
by rewrite {1}/mass -mulr_suml -/(mass w) divff // gt_eqF.
Qed.

Definition minimum n (rows : 'I_n.+1 -> T -> R) := normalised (fun v => \big[Num.min/rows ord0 v]_k rows k v).
Definition maximum n (rows : 'I_n.+1 -> T -> R) := normalised (fun v => \big[Num.max/rows ord0 v]_k rows k v).

Lemma minimum_ge0 n (rows : 'I_n.+1 -> T -> R) v :
  (forall k, law (rows k)) -> 0 <= \big[Num.min/rows ord0 v]_k rows k v.
Proof.
move=> rows_law; elim/big_ind: _ => [|x y x0 y0|k _]; rewrite ?law_ge0 //.
by rewrite le_minr x0 y0.
Qed.

Theorem minimum_law n (rows : 'I_n.+1 -> T -> R) :
  (forall k, law (rows k)) -> (exists v, forall k, 0 < rows k v) -> law (minimum rows).
Proof.
move=> rows_law [v hv]; apply: normalised_law => [u|]; first exact: minimum_ge0.
rewrite /mass (bigD1 v) //= ltr_paddr ?sumr_ge0 // => [u _|]; first exact: minimum_ge0.
by elim/big_ind: _ => // x y x0 y0; rewrite lt_minr x0 y0.
Qed.

Theorem maximum_law n (rows : 'I_n.+1 -> T -> R) : (forall k, law (rows k)) -> law (maximum rows).
Proof.
move=> rows_law.
have le_max v : rows ord0 v <= \big[Num.max/rows ord0 v]_k rows k v.
  by elim/big_rec: _ => // k x _ h; rewrite le_maxr h orbT.
have max0 v : 0 <= \big[Num.max/rows ord0 v]_k rows k v by apply: le_trans (le_max v); apply: law_ge0.
apply: normalised_law => //; apply: (@lt_le_trans _ _ 1); first exact: ltr01.
rewrite -(law_mass (rows_law ord0)); exact: ler_sum.
Qed.

(* pi = e^score / sum e^score over the tokens that the policy does not mask: contrastive, arithmetic, log_linear. *)
Definition softmax_of (exp : R -> R) (masked : pred T) (score : T -> R) : T -> R :=
  normalised (fun v => if masked v then 0 else exp (score v)).

Theorem softmax_of_law (exp : R -> R) (masked : pred T) (score : T -> R) :
  (forall x, 0 < exp x) -> (exists v, ~~ masked v) -> law (softmax_of exp masked score).
Proof.
move=> exp0 [v hv]; have w0 u : 0 <= (if masked u then 0 else exp (score u)) by case: ifP => // _; rewrite ltW.
apply: normalised_law => //; rewrite /mass (bigD1 v) //= (negbTE hv) ltr_paddr ?exp0 //.
by apply: sumr_ge0.
Qed.

(* ---- token cascades -------------------------------------------------------------------------------------------- *)

Definition eta (r : pred T) q : R := \sum_(v | r v) q v.
Definition token_cascade (r : pred T) q p : T -> R := fun v => eta r q * p v + (if r v then 0 else q v).
Definition token_v1 (alpha : R) q p := token_cascade (fun v => q v < top p - alpha) q p.
Definition token_v2 (alpha : R) q p := token_cascade (fun v => p v < top p - alpha) q p.
Definition token_v3 (alpha : R) q p := token_cascade (fun v => p v < (1 - alpha) * top p) q p.

Lemma eta_ge0 (r : pred T) q : law q -> 0 <= eta r q.
Proof. by move=> q_law; apply: sumr_ge0 => v _; apply: law_ge0. Qed.

Theorem token_cascade_law (r : pred T) q p : law q -> law p -> law (token_cascade r q p).
Proof.
move=> q_law p_law; split=> [v|].
- by rewrite addr_ge0 ?mulr_ge0 ?eta_ge0 ?law_ge0 //; case: ifP => // _; apply: law_ge0.
- rewrite /mass /token_cascade big_split /= -mulr_sumr -/(mass p) (law_mass p_law) mulr1 -(law_mass q_law) /eta /mass.
  rewrite [RHS](bigID r) /=; congr (_ + _).
  by rewrite [RHS]big_mkcond; apply: eq_bigr => v _; case: (r v).
Qed.

Corollary token_v1_law alpha q p : law q -> law p -> law (token_v1 alpha q p).
Proof. exact: token_cascade_law. Qed.
Corollary token_v2_law alpha q p : law q -> law p -> law (token_v2 alpha q p).
Proof. exact: token_cascade_law. Qed.
Corollary token_v3_law alpha q p : law q -> law p -> law (token_v3 alpha q p).
Proof. exact: token_cascade_law. Qed.

(* What a token cascade rejects: the probability 1 - overlap q pi. *)
Theorem token_cascade_rejection (r : pred T) q p :
  law q -> law p -> tv q (token_cascade r q p) = \sum_(v | r v) positive (q v - eta r q * p v).
Proof.
move=> q_law p_law; have pi_law := token_cascade_law r q_law p_law.
rewrite tvC tv_residual ?(law_mass q_law) ?(law_mass pi_law) // /mass [RHS]big_mkcond.
apply: eq_bigr => v _; rewrite /residual mul1r /token_cascade; case: (r v); first by rewrite addr0.
rewrite /positive max_r // opprD addrCA subrr addr0 oppr_le0.
by rewrite mulr_ge0 ?eta_ge0 ?law_ge0.
Qed.

(* ---- lossy ----------------------------------------------------------------------------------------------------- *)

Section Lossy.
Variables (alpha : R) (q p : T -> R).
Hypotheses (alpha01 : 0 <= alpha < 1) (q_law : law q) (p_law : law p).

Definition lenient_p : T -> R := fun v => p v / (1 - alpha).
(* R of the papers: what the acceptance rejects. *)
Definition rejected_mass : R := \sum_v positive (q v - lenient_p v).
(* S of the papers, with c = 1 / beta. *)
Definition residual_mass (c : R) : R := mass (residual c p q).

(* As the header: the residual is scaled to the rejected mass; if it has none, the rejected mass goes to p. *)
Definition lossy (beta : R) : T -> R := fun v =>
  let S := residual_mass beta^-1 in
  Num.min (q v) (lenient_p v) +
  (if 0 < S then rejected_mass / S * positive (beta^-1 * p v - q v) else rejected_mass * p v).

Lemma alpha_gt0 : 0 < 1 - alpha. Proof. by rewrite subr_gt0; case/andP: alpha01. Qed.
Lemma lenient_p_ge v : p v <= lenient_p v.
Proof.
rewrite /lenient_p ler_pdivl_mulr ?alpha_gt0 // mulrBr mulr1 ler_subl_addr ler_addl.
by rewrite mulr_ge0 ?law_ge0 //; case/andP: alpha01.
Qed.
Lemma lenient_p_ge0 v : 0 <= lenient_p v.
Proof. exact: le_trans (law_ge0 v p_law) (lenient_p_ge v). Qed.
Lemma rejected_mass_ge0 : 0 <= rejected_mass.
Proof. by apply: sumr_ge0 => v _; apply: positive_ge0. Qed.

Lemma accepted_and_rejected : \sum_v Num.min (q v) (lenient_p v) + rejected_mass = 1.
Proof.
rewrite -(law_mass q_law) /mass /rejected_mass -big_split; apply: eq_bigr => v _.
exact: positive_split.
Qed.

Theorem lossy_law beta : law (lossy beta).
Proof.
split=> [v|].
- rewrite addr_ge0 //; first by rewrite le_minr law_ge0 ?lenient_p_ge0.
  by case: ltrP => h; rewrite mulr_ge0 ?positive_ge0 ?divr_ge0 ?rejected_mass_ge0 ?law_ge0 ?(ltW h).
- rewrite /mass /lossy big_split /= -[RHS]accepted_and_rejected; congr (_ + _).
  case: (ltrP 0 (residual_mass beta^-1)) => h.
  + rewrite -mulr_sumr -/(mass (fun v => positive (beta^-1 * p v - q v))) -/(residual_mass beta^-1).
    by rewrite divfK // gt_eqF.
  + by rewrite -mulr_sumr -/(mass p) (law_mass p_law) mulr1.
Qed.

(* The acceptance of Tran-Thien's procedure is kept: min(q, p / (1 - alpha)) if residual and acceptance do not meet. *)
Lemma rejected_mass_le_tv : rejected_mass <= tv q p.
Proof.
rewrite tvC (tv_residual (law_mass p_law) (law_mass q_law)) /rejected_mass /mass; apply: ler_sum => v _.
by rewrite /residual mul1r positive_le // ler_add2l ler_opp2 lenient_p_ge.
Qed.

Lemma residual_mass_1 : residual_mass 1 = tv q p.
Proof. by rewrite /residual_mass -(tv_residual (law_mass q_law) (law_mass p_law)). Qed.

(* ---- the exact beta: S = R --------------------------------------------------------------------------------------- *)

Lemma residual_mass_ge (c : R) (A : {set T}) : \sum_(v in A) (c * p v - q v) <= residual_mass c.
Proof.
rewrite /residual_mass /mass big_mkcond; apply: ler_sum => v _; rewrite /residual /positive.
by case: ifP => _; rewrite le_maxr lexx ?orbT.
Qed.

Lemma residual_mass_attained (c : R) : residual_mass c = \sum_(v in [set v | q v < c * p v]) (c * p v - q v).
Proof.
rewrite /residual_mass /mass [RHS]big_mkcond; apply: eq_bigr => v _; rewrite inE /residual /positive.
by case: ltrP => h; [rewrite max_l // subr_ge0 ltW | rewrite max_r // subr_le0].
Qed.

(* The slope of the sums over A, and the c where such a sum is R. *)
Definition slope (A : {set T}) : R := \sum_(v in A) p v.
Definition crossing (A : {set T}) : R := (rejected_mass + \sum_(v in A) q v) / slope A.

Lemma sum_at (c : R) (A : {set T}) : \sum_(v in A) (c * p v - q v) = c * slope A - \sum_(v in A) q v.
Proof. by rewrite sumrB mulr_sumr. Qed.

Lemma slope_setT : slope setT = 1.
Proof. by rewrite -(law_mass p_law); apply: eq_bigl => v; rewrite inE. Qed.

Theorem exact_beta_exists :
  0 < rejected_mass -> exists beta, 1 <= beta /\ residual_mass beta^-1 = rejected_mass.
Proof.
move=> R0.
have T0 : 0 < slope setT by rewrite slope_setT ltr01.
pose A := [arg min_(B < setT | (0 < slope B)%R) (crossing B)]%O.
have [slopeA leastA] : 0 < slope A /\ forall B, 0 < slope B -> crossing A <= crossing B.
  by rewrite /A; case: arg_minP => // B hB least.
set c := crossing A.
have q0 (B : {set T}) : 0 <= \sum_(v in B) q v by apply: sumr_ge0 => v _; apply: law_ge0.
have slope0 B : 0 <= slope B by apply: sumr_ge0 => v _; apply: law_ge0.
have c0 : 0 < c by rewrite divr_gt0 // ltr_paddr.
have at_c : c * slope A - \sum_(v in A) q v = rejected_mass by rewrite /c /crossing divfK ?gt_eqF // addrK.
have S_c : residual_mass c = rejected_mass.
  apply: le_anti; apply/andP; split; last by rewrite -at_c -sum_at residual_mass_ge.
  rewrite residual_mass_attained sum_at; set B := [set _ | _].
  case: (ltrP 0 (slope B)) => hB.
  - rewrite ler_subl_addr; have := leastA _ hB.
    by rewrite -/c /crossing ler_pdivl_mulr.
  - have -> : slope B = 0 by apply/le_anti; rewrite hB slope0.
    by rewrite mulr0 sub0r (le_trans _ (ltW R0)) // oppr_le0.
exists c^-1; rewrite invrK; split=> //.
rewrite invf_ge1 //; rewrite leNgt; apply/negP => c1.
pose B := [set v | q v < 1 * p v].
have hB : 0 < slope B.
  have := residual_mass_attained 1; rewrite residual_mass_1 sum_at mul1r => e.
  have : 0 < tv q p by apply: lt_le_trans R0 rejected_mass_le_tv.
  by rewrite e subr_gt0; apply: le_lt_trans.
have := leastA _ hB; rewrite -/c; apply/negP; rewrite -ltNge; apply: le_lt_trans c1.
rewrite /crossing ler_pdivr_mulr // mul1r -ler_subr_addr.
apply: (le_trans rejected_mass_le_tv).
by rewrite -residual_mass_1 residual_mass_attained sum_at mul1r.
Qed.

(* With beta >= 1 (so for every beta >= 1 - alpha that is exact) acceptance and residual lie on two sides of q. *)
Definition printed_formula (beta : R) : T -> R := fun v => Num.max (Num.min (q v) (lenient_p v)) (p v / beta).

Lemma printed_formula_split beta v :
  1 - alpha <= beta ->
  printed_formula beta v = Num.min (q v) (lenient_p v) + positive (beta^-1 * p v - q v).
Proof.
move=> hb; rewrite /printed_formula [_^-1 * _]mulrC.
have b0 : 0 < beta by apply: lt_le_trans alpha_gt0 hb.
have pb : p v / beta <= lenient_p v.
  rewrite /lenient_p; apply: ler_wpmul2l; first exact: law_ge0.
  by rewrite lef_pinv // posrE ?alpha_gt0.
rewrite /positive; case: (lerP (q v) (p v / beta)) => h.
- rewrite (min_l (le_trans h pb)) (max_r h) max_l ?subr_ge0 //.
  by rewrite addrC subrK.
- rewrite max_l; last by rewrite le_minr (ltW h) pb.
  by rewrite max_r ?addr0 // subr_le0 ltW.
Qed.

Theorem printed_formula_mass beta :
  1 - alpha <= beta -> mass (printed_formula beta) = 1 - rejected_mass + residual_mass beta^-1.
Proof.
move=> hb; rewrite -[1]accepted_and_rejected addrK -big_split; apply: eq_bigr => v _.
exact: printed_formula_split.
Qed.

Theorem printed_formula_is_a_law_iff beta :
  1 - alpha <= beta -> (law (printed_formula beta) <-> residual_mass beta^-1 = rejected_mass).
Proof.
move=> hb; have b0 : 0 < beta by apply: lt_le_trans alpha_gt0 hb.
have m := printed_formula_mass hb; split.
- case=> _; rewrite m => /(canRL (addKr _)); rewrite opprB addrC => ->.
  by rewrite addrCA subrr addr0.
- move=> e; split=> [v|]; last by rewrite m e subrK.
  by rewrite le_maxr divr_ge0 ?orbT ?law_ge0 // ltW.
Qed.

Theorem lossy_exact beta v :
  1 - alpha <= beta -> residual_mass beta^-1 = rejected_mass -> lossy beta v = printed_formula beta v.
Proof.
move=> hb e; rewrite printed_formula_split // /lossy e; congr (_ + _).
case: ltrP => h; first by rewrite divff ?mul1r // gt_eqF.
have R0 : rejected_mass = 0 by apply/le_anti; rewrite h rejected_mass_ge0.
have S0 : mass (residual beta^-1 p q) = 0 by rewrite -/(residual_mass _) e.
by rewrite R0 mul0r -[RHS]/(residual beta^-1 p q v) (mass0_row _ S0) // => u; apply: residual_ge0.
Qed.

(* If nothing is rejected, pi = q. *)
Lemma lossy_free beta v : rejected_mass = 0 -> lossy beta v = q v.
Proof.
move=> R0; rewrite /lossy R0 !mul0r if_same addr0.
have := positive_split (q v) (lenient_p v).
rewrite (mass0_row (w := fun u => positive (q u - lenient_p u))) ?addr0 // => u; exact: positive_ge0.
Qed.

End Lossy.

(* ---- the frontier P(reject) + TV(pi, p) = TV(q, p) --------------------------------------------------------------- *)

(* P(reject) = TV(q, pi) (token.v, acceptance_is_1_minus_tv). *)
Definition on_frontier (pi q p : T -> R) : Prop := tv q pi + tv pi p = tv q p.

Lemma between_frontier (pi q p : T -> R) :
  (forall v, (q v <= pi v <= p v) || (p v <= pi v <= q v)) -> on_frontier pi q p.
Proof.
move=> h; rewrite /on_frontier /tv -mulrDr -big_split; congr (_ * _); apply: eq_bigr => v _ /=.
case/orP: (h v) => /andP [h1 h2].
- rewrite !ler0_norm ?subr_le0 ?(le_trans h1 h2) // !opprB addrC addrA subrK //.
- by rewrite !ger0_norm ?subr_ge0 ?(le_trans h1 h2) // addrA subrK.
Qed.

Theorem target_if_frontier defer q p : on_frontier (target_if defer q p) q p.
Proof.
by apply: between_frontier => v; rewrite /target_if; case: defer; rewrite !lexx ?andbT ?le_total // orbC le_total.
Qed.

Theorem ensemble_frontier lambda q p : 0 <= lambda <= 1 -> on_frontier (ensemble lambda q p) q p.
Proof.
move=> /andP [l0 l1]; apply: between_frontier => v; rewrite /ensemble.
have l1' : 0 <= 1 - lambda by rewrite subr_ge0.
have mix x : lambda * x + (1 - lambda) * x = x by rewrite -mulrDl addrC subrK mul1r.
case/orP: (le_total (q v) (p v)) => h; apply/orP; [left | right]; apply/andP; split.
- by rewrite -{1}(mix (q v)) ler_add2l ler_wpmul2l.
- by rewrite -{2}(mix (p v)) ler_add2r ler_wpmul2l.
- by rewrite -{1}(mix (p v)) ler_add2r ler_wpmul2l.
- by rewrite -{2}(mix (q v)) ler_add2l ler_wpmul2l.
Qed.

Theorem lossy_frontier alpha beta q p :
  0 <= alpha < 1 -> law q -> law p -> 1 <= beta -> rejected_mass alpha q p <= residual_mass q p beta^-1 ->
  on_frontier (lossy alpha q p beta) q p.
Proof.
move=> alpha01 q_law p_law b1 RS; have b0 : 0 < beta by apply: lt_le_trans b1; exact: ltr01.
have R0 := rejected_mass_ge0 alpha q p.
case: (ltrP 0 (residual_mass q p beta^-1)) => S0; last first.
  have e : rejected_mass alpha q p = 0 by apply/le_anti; rewrite R0 (le_trans RS S0).
  by apply: between_frontier => v; rewrite lossy_free // !lexx ?andbT /= le_total.
apply: between_frontier => v; rewrite /lossy S0.
have pl := lenient_p_ge alpha01 p_law v.
have pb : beta^-1 * p v <= p v by rewrite ler_pimull ?law_ge0 // invf_le1.
have s1 : rejected_mass alpha q p / residual_mass q p beta^-1 <= 1 by rewrite ler_pdivr_mulr // mul1r.
have s0 : 0 <= rejected_mass alpha q p / residual_mass q p beta^-1 by rewrite divr_ge0 // ltW.
case: (lerP (q v) (p v)) => h; apply/orP; [left | right].
- rewrite (min_l (le_trans h pl)) ler_addl mulr_ge0 ?positive_ge0 //=.
  rewrite -ler_subr_addl; apply: (@le_trans _ _ (positive (beta^-1 * p v - q v))).
    by rewrite -{2}[positive _]mul1r ler_wpmul2r ?positive_ge0.
  by rewrite /positive le_maxl subr_ge0 h ler_add2r pb.
- rewrite /positive [Num.max _ 0]max_r; last by rewrite subr_le0 (le_trans pb) // ltW.
  by rewrite mulr0 addr0 le_minr pl (ltW h) le_minl lexx.
Qed.

End Policies.
