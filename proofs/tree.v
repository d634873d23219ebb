(* SPDX-License-Identifier: Apache-2.0
   Trees of drafts (include/specagg/verify/tree.hpp). Whatever was drafted, in whatever order and shape, both verifiers
   emit exactly pi, for any law pi. After Traversal Verification (Weng et al. 2025, arXiv:2505.12398), with any law pi
   and with any conditional law of a child; recursive rejection is that of SpecInfer (Miao et al. 2024,
   arXiv:2305.09781).

     verify_tree_emits_pi             generalised traversal emits pi
     verify_tree_recursive_emits_pi   recursive rejection emits pi
     verify_tree_is_expectation       for each tree, what it emits is a random text: no probability is negative
     visit_delivers_its_claim         a visit with claim a accepts with probability a, and then emits pi
     visit_add                        one more drafted token, anywhere in a tree, does not change what a visit delivers

   As in the library the whole tree is drafted first, then verified. A drafter adds one token at a time, behind the
   children of any node. It chooses the node, the law L and when it stops by all that it has drawn, and by the text. The
   one condition: a token is drawn from the L that is stored with it. So this covers drafts level by level or path by
   path, with and without replacement, deterministic ones (L is 1 at a token), lookups, and children from several models
   (propose.v). Coins are tossed later, so no choice depends on one.

   The proof: let a token be drawn from L and put behind the last child of a node at which `pi_left` is left when all
   its children have failed. The new child delivers min(L, pi_left), and (pi_left - L)+ is still left: together what was
   left without it.
   So every drafted token leaves the value of a walk as it was; with no token it is what pi promises. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Tree.
Variables (T : finType) (R : realFieldType).
Implicit Types (y v : T) (L pi_left : T -> R) (a fail : R) (s : seq T) (V : seq T -> R) (W : seq T -> seq T -> R).

(* ---- trees ------------------------------------------------------------------------------------------------------ *)

(* The children of a node, in proposal order. Child y L below rest: the first child has token y, was drawn from the law
   L, and has the children `below`; `rest` are its later siblings. *)
Inductive tree := Leaf | Child (y : T) (L : T -> R) (below rest : tree).

(* The tree with one more child (y, L), behind the children of the node at `path`. A path is a list of child numbers
   from the root. If there is no such node, the tree stays as it is. *)
Fixpoint add (t : tree) (path : seq nat) y L : tree :=
  match t, path with
  | Leaf, [::] => Child y L Leaf Leaf
  | Leaf, _ => Leaf
  | Child z K below rest, 0%N :: path' => Child z K (add below path' y L) rest
  | Child z K below rest, i.+1 :: path' => Child z K below (add rest (i :: path') y L)
  | Child z K below rest, [::] => Child z K below (add rest [::] y L)
  end.

(* A drafter, at one text. It draws tokens one by one, puts each behind the children of any node, and may choose the
   node, the law and the end by all tokens that it has drawn. *)
Inductive drafting := Done | Draft (path : seq nat) (L : T -> R) (next : T -> drafting).

(* The expected value of f at the tree that it draws, when it goes on from t. *)
Fixpoint drafted (d : drafting) (t : tree) (f : tree -> R) : R :=
  match d with
  | Done => f t
  | Draft path L next => draw L (fun y => drafted (next y) (add t path y L) f)
  end.

Fixpoint draws_from_laws (d : drafting) : Prop :=
  match d with
  | Done => True
  | Draft _ L next => law L /\ forall y, 0 < L y -> draws_from_laws (next y)
  end.

Fixpoint laws_of (t : tree) : Prop :=
  if t is Child _ L below rest then [/\ law L, laws_of below & laws_of rest] else True.

Lemma laws_of_add t path y L : laws_of t -> law L -> laws_of (add t path y L).
Proof.
move=> h hL; elim: t path h => [|z K below ihb rest ihr] [|[|i] path] //= [hK hb hr]; split=> //.
- exact: ihr.
- exact: ihb.
- exact: ihr.
Qed.

(* ---- generalised traversal --------------------------------------------------------------------------------------- *)

Variables (pi : seq T -> T -> R) (end_of_text : pred T) (bonus : seq T -> bool).

(* The token after the last accepted node s: from what is left at it, if a child of it has failed; else from pi, if a
   bonus is wanted (`bonus s`: not after the end of a text). W s next: the value of a walk that ends with the accepted
   text s and draws the tokens `next`, one or none. *)
Definition finish s pi_left (settled : bool) W : R :=
  if settled then draw (norm_or (pi s) pi_left) (fun z => W s [:: z])
  else if bonus s then draw (pi s) (fun z => W s [:: z])
  else W s [::].

(* The expected value of a visit of the node with text s and children t: of W if it is accepted, `fail` if it fails.
   a: what is left of the claim on the node. pi_left: what is left of pi_n for each next token; a pi_n until a child
   has failed (`settled`). A child with L(y) = 0 is outside, and left out with all that follows it. Nothing follows an
   end of text. *)
Fixpoint visit t s a pi_left (settled : bool) W fail : R :=
  match t with
  | Leaf => coin a (finish s pi_left settled W) fail
  | Child y L below rest =>
    if 0 < L y then
      let claim := share (pi_left y) (L y) in
      let left := residual 1 pi_left L in
      let failed := mass left + (1 - a) in
      let settle :=
        visit rest s (if 0 < failed then mass left / failed else 1) (fun v => left v / failed) true W fail in
      if end_of_text y then coin claim (W (rcons s y) [::]) settle
      else visit below (rcons s y) claim (fun v => claim * pi (rcons s y) v) false W settle
    else visit rest s a pi_left settled W fail
  end.

(* The value of the text that is emitted. *)
Definition emitted V : seq T -> seq T -> R := fun accepted next => V (accepted ++ next).

(* The root has claim 1. It needs no coin: root_accepts. *)
Definition verify_tree t : procedure T R := fun s V => visit t s 1 (pi s) false (emitted V) 0.

(* ---- recursive rejection ----------------------------------------------------------------------------------------- *)

(* The same from the root to the leaves: s is accepted already. *)
Fixpoint descend t s pi_left (settled : bool) W : R :=
  match t with
  | Leaf => finish s pi_left settled W
  | Child y L below rest =>
    if 0 < L y then
      let left := residual 1 pi_left L in
      coin (share (pi_left y) (L y))
           (if end_of_text y then W (rcons s y) [::] else descend below (rcons s y) (pi (rcons s y)) false W)
           (descend rest s (fun v => left v / mass left) true W)
    else descend rest s pi_left settled W
  end.

Definition verify_tree_recursive t : procedure T R := fun s V => descend t s (pi s) false (emitted V).

(* ---- the proof -------------------------------------------------------------------------------------------------- *)

Hypothesis pi_law : forall s, law (pi s).

(* `fail` enters a visit linearly. *)
Lemma visit_average t s a pi_left settled W L (fail : T -> R) :
  law L -> draw L (fun y => visit t s a pi_left settled W (fail y)) = visit t s a pi_left settled W (draw L fail).
Proof.
move=> hL; elim: t s a pi_left settled fail => [|z K below ihb rest ihr] s a pi_left settled fail /=.
  by rewrite /coin draw_add draw_scale draw_law_const // draw_scale.
case: (0 < K z); last exact: ihr.
case: (end_of_text z); last by rewrite -ihr -ihb.
by rewrite -ihr /coin draw_add draw_scale draw_law_const // draw_scale.
Qed.

(* A node that is certain does not fail. *)
Lemma visit_certain t s pi_left settled W fail fail' :
  visit t s 1 pi_left settled W fail = visit t s 1 pi_left settled W fail'.
Proof.
elim: t s pi_left settled fail fail' => [|z K below ihb rest ihr] s pi_left settled fail fail' /=.
  by rewrite /coin subrr !mul0r.
case: ifP => _; last exact: ihr.
rewrite subrr addr0.
have one (m : R) : (if 0 < m then m / m else 1) = 1 by case: ltrP => h //; rewrite divff ?gt_eqF.
by rewrite one (ihr _ _ _ fail fail').
Qed.

(* What is left at a node sums to its claim. *)
Definition weighs a pi_left := [/\ forall v, 0 <= pi_left v, mass pi_left = a & a <= 1].

Lemma weighs_claim c s : 0 <= c -> c <= 1 -> weighs c (fun v => c * pi s v).
Proof.
move=> c0 c1; split=> // [v|]; first by rewrite mulr_ge0 // law_ge0.
by rewrite /mass -mulr_sumr -/(mass (pi s)) law_mass ?mulr1.
Qed.

Lemma finish_rcons s pi_left settled V :
  finish s pi_left settled (emitted V) =
  if settled then draw (norm_or (pi s) pi_left) (fun z => V (rcons s z))
  else if bonus s then draw (pi s) (fun z => V (rcons s z)) else V s.
Proof.
by rewrite /finish /emitted cats0; case: settled; last case: (bonus s) => //; apply: draw_ext => z; rewrite cats1.
Qed.

Lemma visit_leaf V s a pi_left settled fail :
  promised pi V -> weighs a pi_left -> (~~ settled -> forall v, pi_left v = a * pi s v) ->
  visit Leaf s a pi_left settled (emitted V) fail = draw pi_left (fun z => V (rcons s z)) + (1 - a) * fail.
Proof.
move=> hV [o0 oa a1] hpi; rewrite /= /coin finish_rcons; congr (_ + _).
case: settled hpi => [_|/(_ isT) hpi]; first by rewrite -oa mass_draw_norm.
rewrite (draw_row_ext _ hpi) draw_row_scale.
by case: ifP => // _; congr (_ * _); apply: hV.
Qed.

(* What is left at node n after a child has failed, and the probability that one fails. *)
Definition failure pi_left L a : R := mass (residual 1 pi_left L) + (1 - a).

Lemma failure_ge0 pi_left L a : weighs a pi_left -> 0 <= failure pi_left L a.
Proof. by case=> _ _ a1; rewrite addr_ge0 ?subr_ge0 // residual_mass_ge0. Qed.

Lemma weighs_after pi_left L a : weighs a pi_left -> 0 < failure pi_left L a ->
  weighs (mass (residual 1 pi_left L) / failure pi_left L a) (fun v => residual 1 pi_left L v / failure pi_left L a).
Proof.
move=> [_ _ a1] f0; split.
- by move=> v; rewrite divr_ge0 ?residual_ge0 // ltW.
- by rewrite /mass mulr_suml.
- by rewrite ler_pdivr_mulr // mul1r ler_addl subr_ge0.
Qed.

(* If no child can fail, its claim is 1. *)
Lemma certain_child pi_left L a y : law L -> weighs a pi_left ->
  ~~ (0 < failure pi_left L a) -> share (pi_left y) (L y) = 1.
Proof.
move=> hL [o0 oa a1] h.
have m0 := residual_mass_ge0 1 pi_left L; have a0 : 0 <= 1 - a by rewrite subr_ge0.
move: h; rewrite -leNgt /failure => h.
have /eqP : mass (residual 1 pi_left L) + (1 - a) = 0 by apply/le_anti; rewrite h addr_ge0.
rewrite paddr_eq0 // => /andP [/eqP r0 /eqP a_1].
have le v : pi_left v <= L v.
  have := mass0_row (@residual_ge0 _ _ 1 pi_left L) r0 v; rewrite /residual mul1r /positive => e.
  by rewrite -subr_le0 -e le_maxr lexx.
have eq : mass (fun v => L v - pi_left v) = 0.
  by rewrite /mass sumrB -/(mass L) -/(mass pi_left) law_mass // oa a_1.
have := mass0_row (w := fun v => L v - pi_left v) _ eq y.
by move=> e; rewrite /share ltNge (_ : L y <= pi_left y) // -subr_le0 e // => v; rewrite subr_ge0.
Qed.

Lemma draw_share pi_left L (f : T -> R) : (forall v, 0 <= pi_left v) -> law L ->
  draw L (fun y => share (pi_left y) (L y) * f y) = draw (fun v => Num.min (pi_left v) (L v)) f.
Proof. by move=> o0 hL; apply: eq_bigr => v _; rewrite mulrA mul_share // law_ge0. Qed.

Lemma draw_not_share pi_left L a : law L -> weighs a pi_left ->
  draw L (fun y => 1 - share (pi_left y) (L y)) = failure pi_left L a.
Proof.
move=> hL [o0 oa _]; rewrite /failure -oa.
have -> : mass pi_left = overlap pi_left L + mass (residual 1 pi_left L).
  have := overlap_residual 1 pi_left L; rewrite mul1r => <-; congr (_ + _).
  by apply: eq_bigr => v _; rewrite mul1r.
rewrite opprD [- _ - _]addrC !addrA [mass _ + 1]addrC addrK.
rewrite /draw -[1 in RHS](law_mass hL) /mass /overlap -sumrB; apply: eq_bigr => v _.
by rewrite mulrBr mulr1 mul_share // law_ge0.
Qed.

(* A child drawn from any law, and then what is left: together they pay what was pi_left. *)
Lemma child_pays pi_left L a s V settle fail : law L -> weighs a pi_left ->
  (0 < failure pi_left L a ->
   settle = draw (fun v => residual 1 pi_left L v / failure pi_left L a) (fun z => V (rcons s z))
            + (1 - mass (residual 1 pi_left L) / failure pi_left L a) * fail) ->
  draw L (fun y => coin (share (pi_left y) (L y)) (V (rcons s y)) settle)
  = draw pi_left (fun z => V (rcons s z)) + (1 - a) * fail.
Proof.
move=> hL ow hs; have [o0 oa a1] := ow.
rewrite /coin draw_add draw_share //.
have -> : draw L (fun y => (1 - share (pi_left y) (L y)) * settle) = failure pi_left L a * settle.
  by rewrite -(draw_not_share hL ow) /draw mulr_suml; apply: eq_bigr => v _; rewrite mulrA.
have -> : draw pi_left (fun z => V (rcons s z)) =
          draw (fun v => Num.min (pi_left v) (L v)) (fun z => V (rcons s z))
          + draw (residual 1 pi_left L) (fun z => V (rcons s z)).
  rewrite -draw_row_add; apply: draw_row_ext => v.
  by rewrite /residual mul1r positive_split.
rewrite -addrA; congr (_ + _).
case: (ltrP 0 (failure pi_left L a)) => [f0|f0].
- rewrite hs // mulrDr; congr (_ + _).
  + by rewrite -draw_row_scale; apply: draw_row_ext => v; rewrite mulrC divfK // gt_eqF.
  + by rewrite mulrA mulrBr mulr1 mulrCA divff ?gt_eqF // mulr1 /failure addrC addKr.
- have f_0 : failure pi_left L a = 0 by apply/le_anti; rewrite f0 failure_ge0.
  have m0 := residual_mass_ge0 1 pi_left L; have a0 : 0 <= 1 - a by rewrite subr_ge0.
  rewrite f_0 mul0r; move/eqP: f_0; rewrite paddr_eq0 // => /andP [/eqP r0 /eqP ->].
  rewrite mul0r addr0 /draw big1 // => v _.
  by rewrite (mass0_row (@residual_ge0 _ _ 1 pi_left L) r0) mul0r.
Qed.

(* One more token in a tree, drawn from any law and put behind its siblings, anywhere: the visit has the same value. *)
Lemma visit_add t path L s a pi_left settled V fail :
  promised pi V -> laws_of t -> law L -> weighs a pi_left -> (~~ settled -> forall v, pi_left v = a * pi s v) ->
  draw L (fun y => visit (add t path y L) s a pi_left settled (emitted V) fail) =
  visit t s a pi_left settled (emitted V) fail.
Proof.
move=> hV + hL; elim: t path s a pi_left settled fail
  => [|z K below ihb rest ihr] path s a pi_left settled fail ht ow hpi.
  case: path => [|i path]; last by rewrite draw_law_const.
  rewrite (visit_leaf _ hV ow hpi) -(child_pays (s := s) (V := V) (fail := fail) hL ow (settle :=
    visit Leaf s (if 0 < failure pi_left L a then mass (residual 1 pi_left L) / failure pi_left L a else 1)
      (fun v => residual 1 pi_left L v / failure pi_left L a) true (emitted V) fail)); last first.
    by move=> f0; rewrite f0 (visit_leaf _ hV (weighs_after ow f0)).
  apply: eq_bigr => y _; case: (ltrP 0 (L y)) => [Ly|Ly]; last first.
    have -> : L y = 0 by apply/le_anti; rewrite Ly law_ge0.
    by rewrite !mul0r.
  congr (_ * _); rewrite /add; set settle := visit Leaf s _ _ _ _ _.
  rewrite [LHS]/= Ly -/(failure _ _ _) -/settle; case: ifP => [_|_]; first by rewrite /emitted cats0.
  have c0 : 0 <= share (pi_left y) (L y) by apply: share_ge0; case: ow.
  have c1 : share (pi_left y) (L y) <= 1 by apply: share_le1; case: ow.
  have := @visit_leaf V (rcons s y) _ _ false settle hV (weighs_claim (rcons s y) c0 c1) (fun _ _ => erefl).
  by rewrite /= draw_row_scale -hV => ->.
case: ht => hK hb hr.
have later path' : draw L (fun y => visit (Child z K below (add rest path' y L)) s a pi_left settled (emitted V) fail)
                   = visit (Child z K below rest) s a pi_left settled (emitted V) fail.
  rewrite /=; case Kz: (0 < K z); last exact: ihr.
  rewrite -/(failure pi_left K a); case f0: (0 < failure pi_left K a).
    have not_settled : ~~ true -> forall v, residual 1 pi_left K v / failure pi_left K a
                                            = mass (residual 1 pi_left K) / failure pi_left K a * pi s v by [].
    have ihr' := ihr path' s _ _ true fail hr (weighs_after ow f0) not_settled.
    case: (end_of_text z); first by rewrite draw_add draw_scale draw_law_const // draw_scale ihr'.
    by rewrite visit_average // ihr'.
  rewrite (certain_child z hK ow) ?f0 //; case: (end_of_text z).
    by rewrite /coin subrr !mul0r -[RHS](draw_law_const _ hL); apply: draw_ext => y; rewrite mul0r.
  rewrite -[RHS](draw_law_const _ hL); apply: draw_ext => y; exact: visit_certain.
case: path => [|[|i] path]; rewrite [add]lock /=; rewrite -lock; [exact: later | | exact: later].
rewrite /=; case Kz: (0 < K z); last by rewrite draw_law_const.
case: (end_of_text z); first by rewrite draw_law_const.
have c0 : 0 <= share (pi_left z) (K z) by apply: share_ge0; case: ow.
have c1 : share (pi_left z) (K z) <= 1 by apply: share_le1; case: ow.
exact: (ihb path _ _ _ _ _ hb (weighs_claim _ c0 c1)).
Qed.

(* After any drafting, generalised traversal of what was drafted has the value of the tree that it began with. *)
Lemma visit_drafted d t s a pi_left settled V fail :
  promised pi V -> laws_of t -> draws_from_laws d -> weighs a pi_left ->
  (~~ settled -> forall v, pi_left v = a * pi s v) ->
  drafted d t (fun u => visit u s a pi_left settled (emitted V) fail) = visit t s a pi_left settled (emitted V) fail.
Proof.
move=> hV + + ow hpi; elim: d t => [|path L next ih] t //= ht [hL hd].
rewrite -[RHS](visit_add path fail hV ht hL ow hpi); apply: eq_bigr => y _.
case: (ltrP 0 (L y)) => Ly; first by rewrite ih //; [exact: laws_of_add | exact: hd].
have -> : L y = 0 by apply/le_anti; rewrite Ly law_ge0.
by rewrite !mul0r.
Qed.

(* A visit with claim a accepts with probability a, and then delivers what pi promises after the node. *)
Theorem visit_delivers_its_claim d s a V fail :
  0 <= a -> a <= 1 -> draws_from_laws d -> promised pi V ->
  drafted d Leaf (fun t => visit t s a (fun v => a * pi s v) false (emitted V) fail) = coin a (V s) fail.
Proof.
move=> a0 a1 hd hV; rewrite visit_drafted //; last exact: weighs_claim.
by rewrite visit_leaf // ?draw_row_scale -?hV //; apply: weighs_claim.
Qed.

(* Whatever would happen if the root failed, it does not fail. *)
Lemma root_accepts t s W fail fail' :
  visit t s 1 (pi s) false W fail = visit t s 1 (pi s) false W fail'.
Proof. exact: visit_certain. Qed.

(* Every coin of a visit has a probability from 0 to 1: whatever the tree, what a walk emits is a random text. *)
Lemma finish_ge0 s pi_left settled V : (forall v, 0 <= pi_left v) -> (forall u, 0 <= V u) ->
  0 <= finish s pi_left settled (emitted V).
Proof.
move=> o0 V0; rewrite /finish /emitted; case: settled; first by apply: draw_ge0 => // v; apply/law_ge0/norm_or_law.
by case: (bonus s) => //; apply: draw_ge0 => // v; apply: law_ge0.
Qed.

Lemma finish_one s pi_left settled : (forall v, 0 <= pi_left v) -> finish s pi_left settled (emitted (fun=> 1)) = 1.
Proof.
move=> o0; rewrite /finish /emitted; case: settled; first by rewrite draw_law_const //; apply: norm_or_law.
by case: (bonus s) => //; apply: draw_law_const.
Qed.

Lemma finish_linear s pi_left settled (c d : R) V V' :
  finish s pi_left settled (emitted (fun u => c * V u + d * V' u)) =
  c * finish s pi_left settled (emitted V) + d * finish s pi_left settled (emitted V').
Proof.
by rewrite /finish /emitted; case: settled; [exact: draw_linear | case: (bonus s) => //; exact: draw_linear].
Qed.

Lemma settled_claim pi_left L a : a <= 1 ->
  let m := mass (residual 1 pi_left L) in
  0 <= (if 0 < m + (1 - a) then m / (m + (1 - a)) else 1) <= 1 /\ 0 <= m + (1 - a).
Proof.
move=> a1 m; have m0 : 0 <= m by apply: residual_mass_ge0.
have f0 : 0 <= m + (1 - a) by rewrite addr_ge0 // subr_ge0.
split=> //; case: ifP => lt; rewrite ?ler01 ?lexx //.
by rewrite divr_ge0 //= ler_pdivr_mulr // mul1r ler_addl subr_ge0.
Qed.

Lemma visit_ge0 t s a pi_left settled V fail :
  0 <= a <= 1 -> (forall v, 0 <= pi_left v) -> (forall u, 0 <= V u) -> 0 <= fail ->
  0 <= visit t s a pi_left settled (emitted V) fail.
Proof.
move=> + + V0; elim: t s a pi_left settled fail => [|y L below ihb rest ihr] s a pi_left settled fail a01 o0 fail0 /=.
  by case/andP: a01 => *; apply: coin_ge0 => //; apply: finish_ge0.
case: ifP => Ly; last exact: ihr.
have [b01 f0] := settled_claim pi_left L (proj2 (andP a01)).
have left0 v : 0 <= residual 1 pi_left L v / (mass (residual 1 pi_left L) + (1 - a)) by rewrite divr_ge0 ?residual_ge0.
have c0 := share_ge0 (L y) (o0 y); have c1 := share_le1 (L y) (o0 y).
case: (end_of_text y); first by apply: coin_ge0; rewrite ?ihr // /emitted.
by apply: ihb; rewrite ?c0 ?ihr // => v; rewrite mulr_ge0 // law_ge0.
Qed.

Lemma visit_one t s a pi_left settled : a <= 1 -> (forall v, 0 <= pi_left v) ->
  visit t s a pi_left settled (emitted (fun=> 1)) 1 = 1.
Proof.
elim: t s a pi_left settled => [|y L below ihb rest ihr] s a pi_left settled a1 o0 /=.
  by rewrite finish_one // coin_const.
case: ifP => Ly; last exact: ihr.
have [/andP [_ b1] f0] := settled_claim pi_left L a1.
rewrite ihr //; last by move=> v; rewrite divr_ge0 ?residual_ge0.
case: (end_of_text y); first exact: coin_const.
have c0 := share_ge0 (L y) (o0 y); have c1 := share_le1 (L y) (o0 y).
by rewrite ihb // => v; rewrite mulr_ge0 // law_ge0.
Qed.

Lemma visit_linear t s a pi_left settled (c d : R) V V' f g :
  visit t s a pi_left settled (emitted (fun u => c * V u + d * V' u)) (c * f + d * g) =
  c * visit t s a pi_left settled (emitted V) f + d * visit t s a pi_left settled (emitted V') g.
Proof.
elim: t s a pi_left settled f g => [|y L below ihb rest ihr] s a pi_left settled f g /=.
  by rewrite finish_linear coin_linear.
case: ifP => _; last exact: ihr.
by rewrite ihr; case: (end_of_text y); [exact: coin_linear | exact: ihb].
Qed.

Theorem verify_tree_is_expectation t s : expectation (verify_tree t s).
Proof.
have p0 v : 0 <= pi s v by apply: law_ge0.
split=> [V V0||c d V V']; rewrite /verify_tree.
- by apply: visit_ge0; rewrite ?ler01 ?lexx.
- by rewrite (visit_certain _ _ _ _ _ 0 1) visit_one.
- by rewrite -visit_linear !mulr0 addr0.
Qed.

Theorem verify_tree_recursive_is_expectation t s : expectation (verify_tree_recursive t s).
Proof.
suff h settled pi_left : (forall v, 0 <= pi_left v) -> expectation (fun V => descend t s pi_left settled (emitted V)).
  by apply: h => v; apply: law_ge0.
elim: t s settled pi_left => [|y L below ihb rest ihr] s settled pi_left o0 /=.
  by split=> [V V0||c d V V']; [exact: finish_ge0 | exact: finish_one | exact: finish_linear].
case: (0 < L y); last exact: ihr.
have [] := ihb (rcons s y) false (pi (rcons s y)) (fun v => law_ge0 v (pi_law _)); move=> b0 b1 bl.
have [] := ihr s true (fun v => residual 1 pi_left L v / mass (residual 1 pi_left L)).
  by move=> v; rewrite divr_ge0 ?residual_ge0 ?residual_mass_ge0.
move=> r0 r1 rl; split=> [V V0||c d V V'].
- apply: coin_ge0; rewrite ?share_ge0 ?share_le1 ?r0 //.
  by case: (end_of_text y); rewrite ?b0 // /emitted.
- by rewrite b1 r1 if_same coin_const.
- by rewrite bl rl -coin_linear; case: (end_of_text y).
Qed.

Theorem verify_tree_emits_pi (d : seq T -> drafting) :
  (forall s, draws_from_laws (d s)) -> emits pi (fun s V => drafted (d s) Leaf (fun t => verify_tree t s V)).
Proof.
move=> hd; apply: emits_of_promised => // V s hV.
have ow : weighs 1 (pi s) by have [p0 p1] := pi_law s; split.
rewrite visit_drafted //; last by move=> _ v; rewrite mul1r.
by rewrite visit_leaf // ?subrr ?mul0r ?addr0 -?hV // => _ v; rewrite mul1r.
Qed.

(* ---- the same for recursive rejection --------------------------------------------------------------------------- *)

Lemma weighs_all s : weighs 1 (pi s).
Proof. by have [p0 p1] := pi_law s; split. Qed.

Lemma failure_of_1 pi_left L : failure pi_left L 1 = mass (residual 1 pi_left L).
Proof. by rewrite /failure subrr addr0. Qed.

Lemma weighs_rejected pi_left L : weighs 1 pi_left -> 0 < mass (residual 1 pi_left L) ->
  weighs 1 (fun v => residual 1 pi_left L v / mass (residual 1 pi_left L)).
Proof.
rewrite -failure_of_1 => ow f0; have := weighs_after ow f0.
by rewrite failure_of_1 divff // gt_eqF // -failure_of_1.
Qed.

Lemma finish_left V s pi_left settled :
  promised pi V -> weighs 1 pi_left -> (~~ settled -> forall v, pi_left v = pi s v) ->
  finish s pi_left settled (emitted V) = draw pi_left (fun z => V (rcons s z)).
Proof.
move=> hV ow hpi; have := @visit_leaf V s 1 pi_left settled 0 hV ow.
rewrite /= /coin subrr !mul0r !addr0 mul1r; apply=> h v.
by rewrite mul1r hpi.
Qed.

Lemma descend_add t path L s pi_left settled V :
  promised pi V -> laws_of t -> law L -> weighs 1 pi_left -> (~~ settled -> forall v, pi_left v = pi s v) ->
  draw L (fun y => descend (add t path y L) s pi_left settled (emitted V)) = descend t s pi_left settled (emitted V).
Proof.
move=> hV + hL; elim: t path s pi_left settled => [|z K below ihb rest ihr] path s pi_left settled ht ow hpi.
  case: path => [|i path]; last by rewrite draw_law_const.
  rewrite [RHS]/= finish_left //.
  pose settle := descend Leaf s (fun v => residual 1 pi_left L v / mass (residual 1 pi_left L)) true (emitted V).
  have := @child_pays pi_left L 1 s V settle 0 hL ow; rewrite failure_of_1 !mulr0 !addr0 => <-; last first.
    by move=> f0; rewrite [LHS]finish_left //; apply: weighs_rejected.
  apply: eq_bigr => y _; case: (ltrP 0 (L y)) => [Ly|Ly]; last first.
    have -> : L y = 0 by apply/le_anti; rewrite Ly law_ge0.
    by rewrite !mul0r.
  rewrite /= Ly; case: (end_of_text y); first by rewrite /emitted cats0.
  have := finish_rcons (rcons s y) (pi (rcons s y)) false V.
  by rewrite /= => ->; case: (bonus _); rewrite -?hV.
case: ht => hK hb hr.
have later path' : draw L (fun y => descend (Child z K below (add rest path' y L)) s pi_left settled (emitted V))
                   = descend (Child z K below rest) s pi_left settled (emitted V).
  rewrite /=; case Kz: (0 < K z); last exact: ihr.
  rewrite /coin draw_add draw_scale draw_law_const // draw_scale.
  case f0: (0 < mass (residual 1 pi_left K)).
    by rewrite ihr //; apply: weighs_rejected.
  by rewrite (certain_child z hK ow) ?failure_of_1 ?f0 // subrr !mul0r.
case: path => [|[|i] path]; rewrite [add]lock /=; rewrite -lock; [exact: later | | exact: later].
rewrite /=; case Kz: (0 < K z); last by rewrite draw_law_const.
rewrite /coin draw_add draw_scale draw_law_const //.
by case: (end_of_text z); rewrite ?draw_law_const // ihb //; apply: weighs_all.
Qed.

Theorem verify_tree_recursive_emits_pi (d : seq T -> drafting) :
  (forall s, draws_from_laws (d s)) ->
  emits pi (fun s V => drafted (d s) Leaf (fun t => verify_tree_recursive t s V)).
Proof.
move=> hd; apply: emits_of_promised => // V s hV.
have h e t : laws_of t -> draws_from_laws e ->
  drafted e t (fun u => descend u s (pi s) false (emitted V)) = descend t s (pi s) false (emitted V).
  elim: e t => [|path L next ih] t //= ht [hL he].
  rewrite -[RHS](descend_add path hV ht hL (weighs_all s) (fun _ _ => erefl)); apply: eq_bigr => y _.
  case: (ltrP 0 (L y)) => Ly; first by rewrite ih //; [exact: laws_of_add | exact: he].
  have -> : L y = 0 by apply/le_anti; rewrite Ly law_ge0.
  by rewrite !mul0r.
by rewrite h // [LHS]finish_left // -?hV //; apply: weighs_all.
Qed.

End Tree.
